#include "tools/chat/summary.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"

namespace kvern {
namespace {

using Json = nlohmann::ordered_json;

Json DetailsJson(const ErrorDetails& details) {
  Json json = Json::object();
  if (details.retry_after_ms) json["retry_after_ms"] = *details.retry_after_ms;
  if (details.needed_blocks) json["needed_blocks"] = *details.needed_blocks;
  if (details.available_blocks) json["available_blocks"] = *details.available_blocks;
  if (details.needed_total_tokens) json["needed_total_tokens"] = *details.needed_total_tokens;
  if (details.largest_total_tokens) json["largest_total_tokens"] = *details.largest_total_tokens;
  return json;
}

Json StopReasonJson(const StopReason& reason) {
  if (const uint32_t* id = std::get_if<uint32_t>(&reason)) return *id;
  if (const std::string* text = std::get_if<std::string>(&reason)) return *text;
  return nullptr;
}

Json FinishReasonJson(FinishReason reason) {
  if (reason == FinishReason::kStop) return "stop";
  if (reason == FinishReason::kLength) return "length";
  return nullptr;
}

double Milliseconds(Duration duration) {
  return static_cast<double>(duration) / static_cast<double>(kMillisecond);
}

}  // namespace

std::string SummaryLine(const Answer& answer, const AnswerTimes& times,
                        std::optional<uint32_t> max_tokens) {
  size_t tokens = answer.choices.empty() ? 0 : answer.choices[0].token_ids.size();
  if (answer.error.has_value() && tokens == 0) return "";
  std::string line = absl::StrFormat("%d token%s", tokens, tokens == 1 ? "" : "s");
  if (times.first_token != 0) {
    absl::StrAppendFormat(&line, ", first after %.0f ms",
                          Milliseconds(times.first_token - times.sent));
  }
  if (tokens > times.first_tokens && times.last_token > times.first_token) {
    double seconds = Milliseconds(times.last_token - times.first_token) / 1000;
    absl::StrAppendFormat(&line, ", %.1f tokens/s",
                          static_cast<double>(tokens - times.first_tokens) / seconds);
  }
  if (!answer.error.has_value()) {
    absl::StrAppendFormat(&line, ", queued %.0f ms", answer.usage.queue_ms);
    if (answer.choices.at(0).finish_reason == FinishReason::kLength) {
      if (max_tokens.has_value()) {
        absl::StrAppendFormat(&line, ", cut by --max-tokens %d", *max_tokens);
      } else {
        absl::StrAppendFormat(
            &line, ", cut by the service's limit of %d (--max-tokens sets another)", tokens);
      }
    }
  }
  return line;
}

std::string AnswerJson(const Answer& answer) {
  Json json;
  if (answer.error.has_value()) {
    json["error"] = {{"code", std::string(ErrorCodeName(answer.error->code))},
                     {"message", answer.error->message},
                     {"details", DetailsJson(answer.error->details)}};
  } else {
    const ChoiceAnswer& choice = answer.choices.at(0);
    const Usage& usage = answer.usage;
    json["text"] = choice.text;
    json["token_ids"] = choice.token_ids;
    json["finish_reason"] = FinishReasonJson(choice.finish_reason);
    json["stop_reason"] = StopReasonJson(choice.stop_reason);
    json["seed"] = answer.seed;
    json["usage"] = {{"prompt_tokens", usage.prompt_tokens},
                     {"completion_tokens", usage.completion_tokens},
                     {"cached_tokens", usage.cached_tokens},
                     {"queue_ms", usage.queue_ms},
                     {"ttft_ms", usage.ttft_ms},
                     {"tpot_ms", usage.tpot_ms},
                     {"itl_ms_max", usage.itl_ms_max}};
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string ErrorLine(const RequestError& error) {
  std::string line = absl::StrCat(ToAbsl(ErrorCodeName(error.code)), ": ", error.message);
  std::string details;
  Json json = DetailsJson(error.details);
  for (const auto& [name, value] : json.items()) {
    absl::StrAppend(&details, details.empty() ? "" : ", ", name, " ", value.dump());
  }
  return details.empty() ? line : absl::StrCat(line, " (", details, ")");
}

std::string Printable(std::string_view text) {
  std::string printable;
  for (char c : text) {
    bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (!control || c == '\n' || c == '\t') printable.push_back(c);
  }
  return printable;
}

}  // namespace kvern
