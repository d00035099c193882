#include "tools/tokenizer/tokenizer_lines.h"

#include <algorithm>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "router/text/detokenizer.h"
#include "router/text/message_json.h"
#include "router/text/utf8.h"

namespace kvern {
namespace {

using nlohmann::json;

absl::StatusOr<json> ParseObject(std::string_view line) {
  KVERN_RETURN_IF_ERROR(CheckUtf8(line));
  json object = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return InvalidArgument("the line is not a JSON object");
  return object;
}

absl::Status CheckFields(const json& object, std::initializer_list<std::string_view> allowed) {
  for (const auto& field : object.items()) {
    if (std::find(allowed.begin(), allowed.end(), field.key()) != allowed.end()) continue;
    std::string names;
    for (std::string_view name : allowed) names.append(names.empty() ? "" : ", ").append(name);
    return InvalidArgument("unknown field '", field.key(), "', allowed: ", names);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> BoolField(const json& object, const char* name, bool otherwise) {
  auto it = object.find(name);
  if (it == object.end()) return otherwise;
  if (!it->is_boolean()) return InvalidArgument(name, ": ", it->type_name(), ", allowed is a bool");
  return it->get<bool>();
}

// The text of an encode line: "text", or the bytes of "bytes_b64".
absl::StatusOr<std::string> TextField(const json& object) {
  const bool as_text = object.contains("text");
  if (as_text == object.contains("bytes_b64")) {
    return InvalidArgument("exactly one of text and bytes_b64 is needed");
  }
  const char* name = as_text ? "text" : "bytes_b64";
  const json& value = object[name];
  if (!value.is_string()) {
    return InvalidArgument(name, ": ", value.type_name(), ", allowed is a string");
  }
  if (as_text) return value.get<std::string>();
  std::string bytes;
  if (!absl::Base64Unescape(value.get_ref<const std::string&>(), &bytes)) {
    return InvalidArgument("bytes_b64: not base64");
  }
  return bytes;
}

absl::StatusOr<std::vector<uint32_t>> IdsField(const json& object) {
  auto it = object.find("ids");
  if (it == object.end()) return InvalidArgument("ids: missing");
  if (!it->is_array()) return InvalidArgument("ids: ", it->type_name(), ", allowed is a list");
  std::vector<uint32_t> ids;
  for (size_t i = 0; i < it->size(); ++i) {
    const json& id = (*it)[i];
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return InvalidArgument("ids[", i,
                             "]: ", id.dump(-1, ' ', true, json::error_handler_t::replace),
                             ", allowed is a token id");
    }
    ids.push_back(id.get<uint32_t>());
  }
  return ids;
}

absl::StatusOr<json> Encode(const Tokenizer& tokenizer, const json& object) {
  KVERN_RETURN_IF_ERROR(CheckFields(object, {"text", "bytes_b64", "parse_special", "add_special"}));
  KVERN_ASSIGN_OR_RETURN(std::string text, TextField(object));
  EncodeOptions options;
  KVERN_ASSIGN_OR_RETURN(options.parse_special, BoolField(object, "parse_special", false));
  KVERN_ASSIGN_OR_RETURN(options.add_special, BoolField(object, "add_special", false));
  KVERN_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, tokenizer.Encode(text, options));
  return json{{"ids", ids}};
}

absl::StatusOr<json> Decode(const Tokenizer& tokenizer, const json& object) {
  KVERN_RETURN_IF_ERROR(CheckFields(object, {"ids", "skip_special"}));
  KVERN_ASSIGN_OR_RETURN(std::vector<uint32_t> ids, IdsField(object));
  KVERN_ASSIGN_OR_RETURN(bool skip_special, BoolField(object, "skip_special", false));
  KVERN_RETURN_IF_ERROR(tokenizer.CheckIds(ids));
  StreamDecoder decoder(&tokenizer, skip_special);
  std::string text;
  std::string bytes;
  for (uint32_t id : ids) {
    text += decoder.Append(id);
    if (!skip_special || !tokenizer.IsControl(id)) bytes += tokenizer.TokenBytes(id);
  }
  text += decoder.Flush();
  return json{{"text", text}, {"bytes_b64", absl::Base64Escape(bytes)}};
}

absl::StatusOr<json> Chat(const Tokenizer& tokenizer,
                          const absl::StatusOr<ChatTemplate>& chat_template, const json& object) {
  KVERN_RETURN_IF_ERROR(chat_template.status());
  KVERN_RETURN_IF_ERROR(CheckFields(object, {"messages", "add_generation_prompt"}));
  auto it = object.find("messages");
  if (it == object.end()) return InvalidArgument("messages: missing");
  absl::StatusOr<std::vector<Message>> messages = ParseMessages(*it, ContentForm::kText);
  if (!messages.ok()) return InvalidArgument("messages: ", messages.status().message());
  KVERN_ASSIGN_OR_RETURN(bool add_prompt, BoolField(object, "add_generation_prompt", true));
  KVERN_ASSIGN_OR_RETURN(std::vector<PromptPiece> pieces,
                         chat_template->Render(*messages, add_prompt));
  KVERN_ASSIGN_OR_RETURN(std::vector<uint32_t> ids,
                         tokenizer.EncodePieces(pieces, /*add_special=*/false));
  return json{{"prompt", JoinPieces(pieces)}, {"ids", ids}};
}

// The names that all our interfaces give to errors.
std::string_view ErrorCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
      return "invalid_argument";
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kFailedPrecondition:
      return "unsupported_parameter";
    default:
      return "internal";
  }
}

}  // namespace

absl::StatusOr<TokenizerLines::Command> TokenizerLines::ParseCommand(std::string_view word) {
  if (word == "encode") return Command::kEncode;
  if (word == "decode") return Command::kDecode;
  if (word == "chat") return Command::kChat;
  return InvalidArgument("command '", ToAbsl(word), "', allowed: encode, decode, chat");
}

std::string TokenizerLines::Answer(Command command, std::string_view line) const {
  absl::StatusOr<json> answer = [&]() -> absl::StatusOr<json> {
    KVERN_ASSIGN_OR_RETURN(json object, ParseObject(line));
    switch (command) {
      case Command::kEncode:
        return Encode(*tokenizer_, object);
      case Command::kDecode:
        return Decode(*tokenizer_, object);
      case Command::kChat:
        return Chat(*tokenizer_, template_, object);
    }
    return Internal("unknown command");
  }();
  if (!answer.ok()) {
    answer = json{{"error",
                   {{"code", ErrorCode(answer.status().code())},
                    {"message", std::string(answer.status().message())}}}};
  }
  return answer->dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

}  // namespace kvern
