#include "tools/run/run_request.h"

#include <nlohmann/json.hpp>

#include "tools/lib/request_json.h"

namespace kvern {
namespace {

using nlohmann::json;

absl::StatusOr<GenerateRequest> Parse(const LineSource::Line& line, Answer& answer) {
  if (line.too_long) {
    return InvalidArgument("the line is longer than ", kMaxRunLineBytes, " bytes");
  }
  json object = json::parse(line.text, nullptr, /*allow_exceptions=*/false);
  if (object.is_discarded()) return InvalidArgument("the line is not JSON in UTF-8");
  if (!object.is_object()) return InvalidArgument("the line is not a JSON object");
  auto id = object.find("id");
  if (id == object.end()) return InvalidArgument("id: missing, allowed is a string");
  if (!id->is_string()) return InvalidArgument("id: ", ShowJson(*id), ", allowed is a string");
  answer.id = *id;
  auto echo = object.find("echo_prompt_token_ids");
  if (echo != object.end() && !echo->is_null()) {
    if (!echo->is_boolean()) {
      return InvalidArgument("echo_prompt_token_ids: ", ShowJson(*echo),
                             ", allowed is true or false");
    }
    answer.echo_prompt = echo->get<bool>();
  }
  RequestJsonRules rules;
  rules.service_fields = false;
  rules.own_fields = {"id", "echo_prompt_token_ids"};
  return ParseRequestJson(object, rules);
}

}  // namespace

bool ParseRunLine(const LineSource::Line& line, GenerateRequest& request, Answer& answer) {
  answer.input_bytes = line.text.size();
  absl::StatusOr<GenerateRequest> parsed = Parse(line, answer);
  if (!parsed.ok()) {
    bool unsupported = parsed.status().code() == absl::StatusCode::kUnimplemented;
    answer.Refuse(unsupported ? ErrorCode::kUnsupportedParameter : ErrorCode::kInvalidArgument,
                  std::string(parsed.status().message()));
    return false;
  }
  request = *std::move(parsed);
  answer.wants_logprobs = request.sampling.logprobs.has_value();
  // How many there will be, if the router takes the request at all.
  if (request.n <= kMaxChoices) answer.choices.resize(request.n);
  if (answer.echo_prompt && request.prompt_token_ids) {
    answer.prompt.assign(request.prompt_token_ids->begin(), request.prompt_token_ids->end());
  }
  return true;
}

}  // namespace kvern
