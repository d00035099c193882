#include "router/text/chat_template.h"

#include <utility>

#include "absl/strings/str_join.h"
#include "router/text/utf8.h"

namespace kvern {
namespace {

constexpr std::string_view kTurnBegin = "<|im_start|>";
constexpr std::string_view kTurnEnd = "<|im_end|>";

struct KnownTemplate {
  std::string_view name;
  std::optional<std::string_view> default_system;
  std::string_view text;  // As models carry it.
};

// The texts are what the models' own files say.
constexpr KnownTemplate kKnownTemplates[] = {
    {"chatml", std::nullopt,
     "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
     "+ "
     "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
     "}}{% endif %}"},
    {"chatml", std::nullopt,
     "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}"
     "{% endif %}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
     "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
     "{{ '<|im_start|>assistant\n' }}{% endif %}"},
    {"smollm2", "You are a helpful AI assistant named SmolLM, trained by Hugging Face",
     "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
     "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
     "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
     "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
     "}}{% endif %}"},
};

std::string AllowedNames() {
  std::vector<std::string_view> names;
  for (const KnownTemplate& known : kKnownTemplates) {
    if (names.empty() || names.back() != known.name) names.push_back(known.name);
  }
  return absl::StrJoin(names, ", ", [](std::string* out, std::string_view name) { *out += name; });
}

// One spelling for all that mean the same: inside {{ }} and {% %}, blanks outside of quotes go,
// quotes are single ones, and \n inside quotes is a line feed. Text outside of tags stays.
std::string Canonical(std::string_view text) {
  std::string canonical;
  bool in_tag = false;
  char quote = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const std::string_view two = text.substr(i, 2);
    if (quote != 0) {
      if (two == "\\n") {
        canonical += '\n';
        ++i;
      } else if (c == quote) {
        canonical += '\'';
        quote = 0;
      } else {
        canonical += c;
      }
    } else if (in_tag) {
      if (c == '\'' || c == '"') {
        quote = c;
        canonical += '\'';
      } else if (c != ' ' && c != '\n') {
        canonical += c;
      }
      in_tag = two != "}}" && two != "%}";
    } else {
      canonical += c;
      in_tag = two == "{{" || two == "{%";
    }
  }
  return canonical;
}

void AppendTurn(std::string_view role, std::string_view content, std::vector<PromptPiece>* pieces) {
  pieces->push_back({std::string(kTurnBegin), true});
  pieces->push_back({absl::StrCat(ToAbsl(role), "\n", ToAbsl(content)), false});
  pieces->push_back({std::string(kTurnEnd), true});
  pieces->push_back({"\n", false});
}

absl::Status CheckMessage(const Message& message, size_t index) {
  absl::Status role = CheckUtf8(message.role);
  if (!role.ok()) return InvalidArgument("messages[", index, "].role: ", role.message());
  absl::Status content = CheckUtf8(message.content);
  if (!content.ok()) return InvalidArgument("messages[", index, "].content: ", content.message());
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::ByName(std::string_view name) {
  for (const KnownTemplate& known : kKnownTemplates) {
    if (known.name == name) return ChatTemplate(known.name, known.default_system);
  }
  return InvalidArgument("chat template '", ToAbsl(name), "', allowed: ", AllowedNames());
}

absl::StatusOr<ChatTemplate> ChatTemplate::ByText(std::string_view template_text) {
  if (template_text.empty()) {
    return FailedPrecondition("the model has no chat template; name one with --chat-template (",
                              AllowedNames(), ")");
  }
  const std::string wanted = Canonical(template_text);
  for (const KnownTemplate& known : kKnownTemplates) {
    if (Canonical(known.text) == wanted) return ChatTemplate(known.name, known.default_system);
  }
  return FailedPrecondition("the model's chat template is not recognised; name one with ",
                            "--chat-template (", AllowedNames(), ")");
}

absl::StatusOr<ChatTemplate> ChatTemplate::Choose(std::string_view name,
                                                  std::string_view template_text) {
  return name.empty() ? ByText(template_text) : ByName(name);
}

absl::StatusOr<std::vector<PromptPiece>> ChatTemplate::Render(std::span<const Message> messages,
                                                              bool add_generation_prompt) const {
  std::vector<PromptPiece> pieces;
  if (default_system_ && !messages.empty() && messages[0].role != "system") {
    AppendTurn("system", *default_system_, &pieces);
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    KVERN_RETURN_IF_ERROR(CheckMessage(messages[i], i));
    AppendTurn(messages[i].role, messages[i].content, &pieces);
  }
  if (add_generation_prompt) {
    pieces.push_back({std::string(kTurnBegin), true});
    pieces.push_back({"assistant\n", false});
  }
  return pieces;
}

std::string JoinPieces(std::span<const PromptPiece> pieces) {
  std::string text;
  for (const PromptPiece& piece : pieces) text += piece.text;
  return text;
}

}  // namespace kvern
