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

absl::StatusOr<Message> ParseMessage(const nlohmann::json& object) {
  if (!object.is_object()) return InvalidArgument(object.type_name(), ", allowed is an object");
  for (const auto& field : object.items()) {
    if (field.key() != "role" && field.key() != "content") {
      return InvalidArgument("unknown field '", field.key(), "', allowed: role, content");
    }
  }
  Message message;
  KVERN_ASSIGN_OR_RETURN(message.role, StringField(object, "role"));
  KVERN_ASSIGN_OR_RETURN(message.content, StringField(object, "content"));
  return message;
}

}  // namespace

absl::StatusOr<std::vector<Message>> ParseMessages(const nlohmann::json& messages) {
  if (!messages.is_array()) {
    return InvalidArgument("messages: ", messages.type_name(), ", allowed is a list");
  }
  std::vector<Message> parsed;
  for (size_t i = 0; i < messages.size(); ++i) {
    absl::StatusOr<Message> message = ParseMessage(messages[i]);
    if (!message.ok()) {
      return InvalidArgument("messages[", i, "]: ", message.status().message());
    }
    parsed.push_back(*std::move(message));
  }
  return parsed;
}

}  // namespace kvern
