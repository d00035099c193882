// Chat templates: recognised by the model's own template text or named by the operator, and
// rendered by code of ours. Template text from a file is never interpreted.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "router/text/tokenizer.h"

namespace kvern {

struct Message {
  std::string role;
  std::string content;
};

// Immutable and small: copy it.
class ChatTemplate {
 public:
  // "chatml": <|im_start|>ROLE\nCONTENT<|im_end|>\n for each message. "smollm2": the same, with the
  // model's own system message in front when the first message is none.
  // invalid_argument, naming the allowed names, for any other name.
  static absl::StatusOr<ChatTemplate> ByName(std::string_view name);

  // The template whose Jinja text this is, up to spacing and quote style inside the tags.
  // failed_precondition, naming the option that helps, for a text that is empty or not known.
  static absl::StatusOr<ChatTemplate> ByText(std::string_view template_text);

  // ByName if a name is given, else ByText: what --chat-template means.
  static absl::StatusOr<ChatTemplate> Choose(std::string_view name, std::string_view template_text);

  const std::string& name() const { return name_; }

  // The prompt as pieces; only the template's own control tokens are control pieces, so that text
  // in a message cannot forge a turn. Any role is allowed, as in the originals; no messages give an
  // empty prompt (plus the opening of the answer). invalid_argument: a role or content that is not
  // well-formed UTF-8, with the message's index.
  absl::StatusOr<std::vector<PromptPiece>> Render(std::span<const Message> messages,
                                                  bool add_generation_prompt) const;

 private:
  ChatTemplate(std::string_view name, std::optional<std::string_view> default_system)
      : name_(name), default_system_(default_system) {}

  std::string name_;
  std::optional<std::string> default_system_;
};

// The pieces as one text, for people to read.
std::string JoinPieces(std::span<const PromptPiece> pieces);

}  // namespace kvern
