#include "router/text/message_json.h"

#include <nlohmann/json.hpp>

namespace kvern {
namespace {

absl::StatusOr<std::string> StringField(const nlohmann::json& object, const char* name) {
  auto it = object.find(name);
  if (it == object.end()) return InvalidArgument(name, ": missing");
  if (!it->is_string()) {
    return InvalidArgument(name, ": ", it->type_name(), ", allowed is a string");
  }
  return it->get<std::string>();
}

absl::Status CheckFields(const nlohmann::json& object, std::string_view first,
                         std::string_view second) {
  for (const auto& field : object.items()) {
    if (field.key() == first || field.key() == second) continue;
    return InvalidArgument("unknown field '", field.key(), "', allowed: ", ToAbsl(first), ", ",
                           ToAbsl(second));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ParsePart(const nlohmann::json& part) {
  if (!part.is_object()) return InvalidArgument(part.type_name(), ", allowed is an object");
  KVERN_ASSIGN_OR_RETURN(std::string type, StringField(part, "type"));
  if (type != "text") return InvalidArgument("type: '", type, "', allowed: text");
  KVERN_RETURN_IF_ERROR(CheckFields(part, "type", "text"));
  return StringField(part, "text");
}

absl::StatusOr<std::string> ParseContent(const nlohmann::json& object, ContentForm form) {
  auto it = object.find("content");
  bool parts = form == ContentForm::kTextOrParts && it != object.end() && it->is_array();
  if (!parts) return StringField(object, "content");
  std::string content;
  for (size_t i = 0; i < it->size(); ++i) {
    absl::StatusOr<std::string> text = ParsePart((*it)[i]);
    if (!text.ok()) return InvalidArgument("content: [", i, "]: ", text.status().message());
    content += *text;
  }
  return content;
}

absl::StatusOr<Message> ParseMessage(const nlohmann::json& object, ContentForm form) {
  if (!object.is_object()) return InvalidArgument(object.type_name(), ", allowed is an object");
  KVERN_RETURN_IF_ERROR(CheckFields(object, "role", "content"));
  Message message;
  KVERN_ASSIGN_OR_RETURN(message.role, StringField(object, "role"));
  KVERN_ASSIGN_OR_RETURN(message.content, ParseContent(object, form));
  return message;
}

}  // namespace

absl::StatusOr<std::vector<Message>> ParseMessages(const nlohmann::json& messages,
                                                   ContentForm form) {
  if (!messages.is_array()) {
    return InvalidArgument(messages.type_name(), ", allowed is a list");
  }
  std::vector<Message> parsed;
  for (size_t i = 0; i < messages.size(); ++i) {
    absl::StatusOr<Message> message = ParseMessage(messages[i], form);
    if (!message.ok()) {
      return InvalidArgument("[", i, "]: ", message.status().message());
    }
    parsed.push_back(*std::move(message));
  }
  return parsed;
}

}  // namespace kvern
