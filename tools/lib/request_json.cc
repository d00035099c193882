#include "tools/lib/request_json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "router/text/message_json.h"

namespace kvern {
namespace {

using nlohmann::json;

absl::Status WrongType(const json& value, std::string_view allowed) {
  return InvalidArgument(ShowJson(value), ", allowed is ", ToAbsl(allowed));
}

absl::StatusOr<uint64_t> Unsigned(const json& value, uint64_t max, uint64_t min = 0) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > max || value.get<uint64_t>() < min) {
    return WrongType(value, absl::StrCat("a whole number from ", min, " to ", max));
  }
  return value.get<uint64_t>();
}

absl::Status ReadPositive(const json& value, uint32_t& out) {
  KVERN_ASSIGN_OR_RETURN(uint64_t number, Unsigned(value, std::numeric_limits<uint32_t>::max(), 1));
  out = static_cast<uint32_t>(number);
  return absl::OkStatus();
}

absl::Status Read(const json& value, uint32_t& out) {
  KVERN_ASSIGN_OR_RETURN(uint64_t number, Unsigned(value, std::numeric_limits<uint32_t>::max()));
  out = static_cast<uint32_t>(number);
  return absl::OkStatus();
}

absl::Status Read(const json& value, uint64_t& out) {
  KVERN_ASSIGN_OR_RETURN(out, Unsigned(value, std::numeric_limits<uint64_t>::max()));
  return absl::OkStatus();
}

absl::Status Read(const json& value, int32_t& out) {
  constexpr int64_t kMin = std::numeric_limits<int32_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= static_cast<uint64_t>(kMax)
                                         : value.is_number_integer();
  if (!fits || value.get<int64_t>() < kMin || value.get<int64_t>() > kMax) {
    return WrongType(value, absl::StrCat("a whole number from ", kMin, " to ", kMax));
  }
  out = static_cast<int32_t>(value.get<int64_t>());
  return absl::OkStatus();
}

absl::Status Read(const json& value, float& out) {
  if (!value.is_number() || std::abs(value.get<double>()) > std::numeric_limits<float>::max()) {
    return WrongType(value, "a number");
  }
  out = static_cast<float>(value.get<double>());
  return absl::OkStatus();
}

absl::Status Read(const json& value, bool& out) {
  if (!value.is_boolean()) return WrongType(value, "true or false");
  out = value.get<bool>();
  return absl::OkStatus();
}

absl::Status Read(const json& value, std::string& out) {
  if (!value.is_string()) return WrongType(value, "a string");
  out = value.get<std::string>();
  return absl::OkStatus();
}

template <typename T>
absl::Status Read(const json& value, std::vector<T>& out) {
  if (!value.is_array()) return WrongType(value, "a list");
  out.resize(value.size());
  for (size_t i = 0; i < value.size(); ++i) {
    absl::Status status = Read(value[i], out[i]);
    if (!status.ok()) return InvalidArgument("[", i, "]: ", status.message());
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status Read(const json& value, std::optional<T>& out) {
  return Read(value, out.emplace());
}

absl::Status Read(const json& value, std::optional<TokenIds>& out) {
  std::vector<uint32_t> ids;
  KVERN_RETURN_IF_ERROR(Read(value, ids));
  out = std::move(ids);
  return absl::OkStatus();
}

absl::Status Read(const json& value, std::optional<std::vector<ChatMessage>>& out) {
  KVERN_ASSIGN_OR_RETURN(std::vector<Message> messages,
                         ParseMessages(value, ContentForm::kTextOrParts));
  out.emplace();
  for (Message& each : messages) {
    out->push_back({std::move(each.role), std::move(each.content)});
  }
  return absl::OkStatus();
}

// {"id": bias, ...}, ids as decimal numbers.
absl::Status Read(const json& value, std::vector<std::pair<uint32_t, float>>& out) {
  if (!value.is_object()) return WrongType(value, "an object from token ids to numbers");
  for (const auto& [key, bias] : value.items()) {
    bool digits = !key.empty() && key.size() <= 10 && (key == "0" || key[0] != '0') &&
                  std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
    uint64_t id = digits ? std::stoull(key) : std::numeric_limits<uint64_t>::max();
    if (id > std::numeric_limits<uint32_t>::max()) {
      return InvalidArgument(ShowJson(json(key)), ", allowed is a token id");
    }
    float number = 0;
    absl::Status status = Read(bias, number);
    if (!status.ok()) return InvalidArgument("[", key, "]: ", status.message());
    out.emplace_back(static_cast<uint32_t>(id), number);
  }
  return absl::OkStatus();
}

absl::Status Read(const json& value, ServiceClass& out) {
  static const std::pair<const char*, ServiceClass> kNames[] = {
      {"guaranteed", ServiceClass::kGuaranteed},
      {"standard", ServiceClass::kStandard},
      {"batch", ServiceClass::kBatch}};
  for (const auto& [name, service_class] : kNames) {
    if (value != name) continue;
    out = service_class;
    return absl::OkStatus();
  }
  return WrongType(value, "\"guaranteed\" or \"standard\"");
}

absl::Status Read(const json& value, RequestId& out) {
  if (!value.is_string()) return WrongType(value, "a string of 32 hexadecimal digits");
  KVERN_ASSIGN_OR_RETURN(out, RequestId::Parse(value.get_ref<const std::string&>()));
  return absl::OkStatus();
}

struct Field {
  std::string_view name;
  bool service_only;
  absl::Status (*read)(const json& value, GenerateRequest& request);
};

#define KVERN_FIELD(name, service_only, target)                                                 \
  {                                                                                             \
    name, service_only,                                                                         \
        [](const json& value, GenerateRequest& request) { return Read(value, request.target); } \
  }

// The request fields of every surface, in the order of the documentation.
const Field kFields[] = {
    KVERN_FIELD("prompt", false, prompt),
    KVERN_FIELD("prompt_token_ids", false, prompt_token_ids),
    KVERN_FIELD("messages", false, messages),
    {"max_tokens", false,
     [](const json& value, GenerateRequest& request) {
       return ReadPositive(value, request.max_tokens.emplace());
     }},
    KVERN_FIELD("temperature", false, sampling.temperature),
    KVERN_FIELD("top_k", false, sampling.top_k),
    KVERN_FIELD("top_p", false, sampling.top_p),
    KVERN_FIELD("min_p", false, sampling.min_p),
    KVERN_FIELD("repetition_penalty", false, sampling.repetition_penalty),
    KVERN_FIELD("presence_penalty", false, sampling.presence_penalty),
    KVERN_FIELD("frequency_penalty", false, sampling.frequency_penalty),
    KVERN_FIELD("logit_bias", false, sampling.logit_bias),
    KVERN_FIELD("seed", false, seed),
    {"n", false,
     [](const json& value, GenerateRequest& request) { return ReadPositive(value, request.n); }},
    KVERN_FIELD("stop", false, stop),
    KVERN_FIELD("stop_token_ids", false, sampling.stop_token_ids),
    KVERN_FIELD("ignore_eos", false, sampling.ignore_eos),
    KVERN_FIELD("min_tokens", false, sampling.min_tokens),
    KVERN_FIELD("logprobs", false, sampling.logprobs),
    KVERN_FIELD("prompt_logprobs", false, sampling.prompt_logprobs),
    KVERN_FIELD("class", true, service_class),
    KVERN_FIELD("priority", true, priority),
    KVERN_FIELD("ttft_deadline_ms", true, ttft_deadline_ms),
    KVERN_FIELD("deadline_ms", true, deadline_ms),
    KVERN_FIELD("detach_ms", true, detach_ms),
    KVERN_FIELD("request_id", true, request_id),
    KVERN_FIELD("model", true, model),
};

#undef KVERN_FIELD

absl::Status ReadField(const std::string& name, const json& value, const RequestJsonRules& rules,
                       GenerateRequest& request) {
  for (const Field& field : kFields) {
    if (field.name != name) continue;
    if (field.service_only && !rules.service_fields) {
      return Unimplemented(name, " is a field of the service and is not taken here");
    }
    if (value.is_null()) return absl::OkStatus();
    absl::Status status = field.read(value, request);
    if (!status.ok()) return InvalidArgument(name, ": ", status.message());
    return absl::OkStatus();
  }
  if (std::find(rules.own_fields.begin(), rules.own_fields.end(), name) != rules.own_fields.end()) {
    return absl::OkStatus();
  }
  std::string allowed;
  auto allow = [&](std::string_view each) {
    absl::StrAppend(&allowed, allowed.empty() ? "" : ", ", ToAbsl(each));
  };
  for (std::string_view each : rules.own_fields) allow(each);
  for (const Field& field : kFields) {
    if (rules.service_fields || !field.service_only) allow(field.name);
  }
  return InvalidArgument("unknown field ", ShowJson(json(name)), ", allowed: ", allowed);
}

}  // namespace

std::string ShowJson(const json& value) {
  constexpr size_t kShown = 60;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  if (text.size() > kShown) {
    text.resize(kShown);
    text += "...";
  }
  return text;
}

absl::StatusOr<GenerateRequest> ParseRequestJson(const json& object,
                                                 const RequestJsonRules& rules) {
  if (!object.is_object()) return WrongType(object, "a JSON object");
  GenerateRequest request;
  for (const auto& [name, value] : object.items()) {
    KVERN_RETURN_IF_ERROR(ReadField(name, value, rules, request));
  }
  return request;
}

}  // namespace kvern
