#include "router/core/validate.h"

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace kvern::router {
namespace {

Refusal Invalid(std::string message) {
  return {ErrorCode::kInvalidArgument, std::move(message), {}};
}

template <typename Value>
Refusal OutOfRange(std::string_view field, const Value& value, std::string_view allowed) {
  return Invalid(absl::StrCat(ToAbsl(field), " is ", value, ", allowed: ", ToAbsl(allowed)));
}

// `what`: a field, or a field and its value.
Refusal Unsupported(std::string_view what, std::string_view allowed) {
  return {ErrorCode::kUnsupportedParameter,
          absl::StrCat(ToAbsl(what), " is not supported yet, allowed: ", ToAbsl(allowed)),
          {}};
}

// A role becomes a part of the prompt, in the template's own words.
Refusal CheckMessages(const std::vector<ChatMessage>& messages) {
  if (messages.empty()) return Invalid("messages is empty, allowed: 1 message or more");
  for (size_t i = 0; i < messages.size(); ++i) {
    std::string_view role = messages[i].role;
    if (role == "system" || role == "user" || role == "assistant") continue;
    constexpr size_t kShownBytes = 32;
    return OutOfRange(absl::StrCat("messages[", i, "].role"),
                      absl::StrCat("'", absl::CHexEscape(ToAbsl(role.substr(0, kShownBytes))), "'"),
                      "system, user, assistant");
  }
  return {};
}

Refusal CheckInput(const RouterConfig& config, const GenerateRequest& request) {
  int inputs = static_cast<int>(request.prompt.has_value()) +
               static_cast<int>(request.prompt_token_ids.has_value()) +
               static_cast<int>(request.messages.has_value());
  if (inputs != 1) {
    return Invalid(absl::StrCat(inputs,
                                " inputs are set, allowed: exactly one of prompt, "
                                "prompt_token_ids, messages"));
  }
  if (!config.has_tokenizer) {
    constexpr std::string_view kAllowed = "prompt_token_ids, as this service has no tokenizer";
    if (request.prompt) return Unsupported("prompt", kAllowed);
    if (request.messages) return Unsupported("messages", kAllowed);
    if (!request.stop.empty())
      return Unsupported("stop", "stop_token_ids, as this service has no tokenizer");
  }
  if (request.prompt && request.prompt->empty())
    return Invalid("prompt is empty, allowed: 1 byte or more");
  if (request.messages) return CheckMessages(*request.messages);
  if (request.prompt_token_ids) return ValidatePrompt(config, *request.prompt_token_ids);
  return {};
}

Refusal CheckUnsupported(const GenerateRequest& request) {
  if (request.service_class == ServiceClass::kBatch) {
    return Unsupported("class batch", "guaranteed, standard");
  }
  if (request.detach_ms != 0) {
    return Unsupported(absl::StrCat("detach_ms ", request.detach_ms), "0");
  }
  if (!request.resume_positions.empty()) return Unsupported("resume_positions", "none");
  if (std::optional<uint32_t> count = request.sampling.prompt_logprobs) {
    return Unsupported(absl::StrCat("prompt_logprobs ", *count), "null");
  }
  return {};
}

bool Within(float value, float low, float high) { return value >= low && value <= high; }

Refusal CheckFloats(const SamplingParams& s) {
  if (!Within(s.temperature, 0, kMaxTemperature)) {
    return OutOfRange("temperature", s.temperature, absl::StrCat("0 to ", kMaxTemperature));
  }
  if (!(s.top_p > 0 && s.top_p <= 1)) return OutOfRange("top_p", s.top_p, "more than 0, up to 1");
  if (!Within(s.min_p, 0, 1)) return OutOfRange("min_p", s.min_p, "0 to 1");
  if (!(s.repetition_penalty > 0 && s.repetition_penalty <= kMaxRepetitionPenalty)) {
    return OutOfRange("repetition_penalty", s.repetition_penalty,
                      absl::StrCat("more than 0, up to ", kMaxRepetitionPenalty));
  }
  if (!Within(s.presence_penalty, -kMaxAbsPenalty, kMaxAbsPenalty)) {
    return OutOfRange("presence_penalty", s.presence_penalty, "-2 to 2");
  }
  if (!Within(s.frequency_penalty, -kMaxAbsPenalty, kMaxAbsPenalty)) {
    return OutOfRange("frequency_penalty", s.frequency_penalty, "-2 to 2");
  }
  return {};
}

Refusal CheckTokenLists(const RouterConfig& config, const SamplingParams& s) {
  std::string below = absl::StrCat("below ", config.vocab_size);
  if (s.logit_bias.size() > kMaxLogitBias) {
    return OutOfRange("number of logit_bias entries", s.logit_bias.size(), "at most 300");
  }
  for (const auto& [id, bias] : s.logit_bias) {
    if (id >= config.vocab_size) return OutOfRange("token id in logit_bias", id, below);
    if (!Within(bias, -kMaxAbsBias, kMaxAbsBias)) {
      return OutOfRange("a value in logit_bias", bias,
                        absl::StrCat(-kMaxAbsBias, " to ", kMaxAbsBias));
    }
  }
  if (s.stop_token_ids.size() > kMaxStopTokenIds) {
    return OutOfRange("number of stop_token_ids", s.stop_token_ids.size(), "at most 64");
  }
  for (uint32_t id : s.stop_token_ids) {
    if (id >= config.vocab_size) return OutOfRange("token id in stop_token_ids", id, below);
  }
  return {};
}

Refusal CheckStops(const GenerateRequest& request) {
  if (request.stop.size() > kMaxStopStrings) {
    return OutOfRange("number of stop strings", request.stop.size(), "at most 16");
  }
  for (const std::string& stop : request.stop) {
    if (stop.empty()) return Invalid("a stop string is empty, allowed: 1 byte or more");
    if (stop.size() > kMaxStopStringBytes) {
      return OutOfRange("bytes of a stop string", stop.size(), "at most 256");
    }
  }
  return {};
}

Refusal CheckLengths(const RouterConfig& config, const GenerateRequest& request) {
  uint32_t max_tokens = request.max_tokens.value_or(config.default_max_tokens);
  if (request.n == 0 || request.n > kMaxChoices) return OutOfRange("n", request.n, "1 to 8");
  if (max_tokens == 0) return OutOfRange("max_tokens", max_tokens, "1 or more");
  if (request.sampling.min_tokens > max_tokens) {
    return OutOfRange("min_tokens", request.sampling.min_tokens,
                      absl::StrCat("at most max_tokens, ", max_tokens));
  }
  if (request.sampling.logprobs && *request.sampling.logprobs > kMaxLogprobs) {
    return OutOfRange("logprobs", *request.sampling.logprobs, "0 to 20");
  }
  if (request.sampling.logprobs && *request.sampling.logprobs > config.vocab_size) {
    return OutOfRange("logprobs", *request.sampling.logprobs,
                      absl::StrCat("at most the vocabulary's size, ", config.vocab_size));
  }
  return {};
}

}  // namespace

Refusal ValidatePrompt(const RouterConfig& config, const TokenIds& ids) {
  if (ids.empty()) return Invalid("the prompt is empty, allowed: 1 token or more");
  if (ids.size_bytes() >= kMinBytesInPlace) return {};
  auto id =
      std::find_if(ids.begin(), ids.end(), [&](uint32_t i) { return i >= config.vocab_size; });
  if (id == ids.end()) return {};
  return OutOfRange("token id in the prompt", *id, absl::StrCat("below ", config.vocab_size));
}

Refusal ValidateRequest(const RouterConfig& config, const GenerateRequest& request) {
  if (!request.model.empty() && request.model != config.model) {
    return {ErrorCode::kNotFound,
            absl::StrCat("model is '", request.model, "', served: '", config.model, "'"),
            {}};
  }
  if (Refusal r = CheckUnsupported(request); !r.ok()) return r;
  if (Refusal r = CheckInput(config, request); !r.ok()) return r;
  if (Refusal r = CheckFloats(request.sampling); !r.ok()) return r;
  if (Refusal r = CheckTokenLists(config, request.sampling); !r.ok()) return r;
  if (Refusal r = CheckStops(request); !r.ok()) return r;
  return CheckLengths(config, request);
}

uint64_t InputBytes(const GenerateRequest& request) {
  uint64_t bytes = 0;
  if (request.prompt) bytes += request.prompt->size();
  if (request.prompt_token_ids) bytes += request.prompt_token_ids->size() * sizeof(uint32_t);
  if (request.messages) {
    for (const ChatMessage& message : *request.messages) {
      bytes += message.role.size() + message.content.size();
    }
  }
  return bytes;
}

}  // namespace kvern::router
