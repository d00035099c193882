#include "tools/run/answer.h"

#include <utility>

#include "cluster/base/check.h"

namespace kvern {
namespace {

using Json = nlohmann::ordered_json;

Json ToJson(const StopReason& reason) {
  if (const auto* id = std::get_if<uint32_t>(&reason)) return *id;
  if (const auto* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

Json ToJson(const TokenLogprob& logprob) {
  Json top = Json::array();
  for (const auto& [id, value] : logprob.top) top.push_back({id, value});
  return {{"token_id", logprob.token_id}, {"logprob", logprob.logprob}, {"top", std::move(top)}};
}

Json ToJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"cached_tokens", usage.cached_tokens},
          {"queue_ms", usage.queue_ms},
          {"ttft_ms", usage.ttft_ms},
          {"tpot_ms", usage.tpot_ms},
          {"itl_ms_max", usage.itl_ms_max}};
}

Json ToJson(const ErrorDetails& details) {
  Json json = Json::object();
  if (details.retry_after_ms) json["retry_after_ms"] = *details.retry_after_ms;
  if (details.needed_blocks) json["needed_blocks"] = *details.needed_blocks;
  if (details.available_blocks) json["available_blocks"] = *details.available_blocks;
  if (details.needed_total_tokens) json["needed_total_tokens"] = *details.needed_total_tokens;
  if (details.largest_total_tokens) json["largest_total_tokens"] = *details.largest_total_tokens;
  return json;
}

Json ToJson(const ChoiceAnswer& choice, size_t index, bool wants_logprobs) {
  Json json;
  json["index"] = index;
  json["token_ids"] = choice.token_ids;
  json["text"] = choice.text ? Json(*choice.text) : Json(nullptr);
  json["finish_reason"] = choice.finish_reason == FinishReason::kStop ? "stop" : "length";
  json["stop_reason"] = ToJson(choice.stop_reason);
  if (wants_logprobs) {
    json["logprobs"] = Json::array();
    for (const TokenLogprob& logprob : choice.logprobs) json["logprobs"].push_back(ToJson(logprob));
  }
  return json;
}

}  // namespace

void Answer::Add(Delta delta) {
  KVERN_CHECK_LT(delta.choice, choices.size());
  ChoiceAnswer& choice = choices[delta.choice];
  KVERN_CHECK_EQ(delta.position, choice.token_ids.size());
  choice.token_ids.insert(choice.token_ids.end(), delta.token_ids.begin(), delta.token_ids.end());
  if (delta.text) choice.text = choice.text.value_or("") + *delta.text;
  for (TokenLogprob& each : delta.logprobs) choice.logprobs.push_back(std::move(each));
  if (delta.finish_reason != FinishReason::kNone) {
    choice.finish_reason = delta.finish_reason;
    choice.stop_reason = std::move(delta.stop_reason);
  }
  if (delta.usage) usage = delta.usage;
}

void Answer::Refuse(ErrorCode code, std::string message) {
  error.emplace();
  error->code = code;
  error->message = std::move(message);
}

std::string ResultLine(const Answer& answer) {
  Json json;
  json["id"] = answer.id;
  if (answer.error) {
    json["error"] = {{"code", std::string(ErrorCodeName(answer.error->code))},
                     {"message", answer.error->message},
                     {"details", ToJson(answer.error->details)}};
  } else {
    json["seed"] = answer.seed;
    json["choices"] = Json::array();
    for (size_t i = 0; i < answer.choices.size(); ++i) {
      json["choices"].push_back(ToJson(answer.choices[i], i, answer.wants_logprobs));
    }
    if (answer.echo_prompt) json["prompt_token_ids"] = answer.prompt;
    json["usage"] = ToJson(*answer.usage);
  }
  // Names and messages that echo the input may hold anything.
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace kvern
