// The three subcommands of kvern-tokenizer, one JSON line at a time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cluster/base/status.h"
#include "router/text/chat_template.h"
#include "router/text/tokenizer.h"

namespace kvern {

// Immutable: answers do not depend on the lines before.
class TokenizerLines {
 public:
  enum class Command { kEncode, kDecode, kChat };

  // invalid_argument, naming the allowed ones, for any other word.
  static absl::StatusOr<Command> ParseCommand(std::string_view word);

  // `tokenizer` must outlive this. A template that could not be chosen makes each chat line that
  // error and leaves the other commands alone.
  TokenizerLines(const Tokenizer* tokenizer, absl::StatusOr<ChatTemplate> chat_template)
      : tokenizer_(tokenizer), template_(std::move(chat_template)) {}

  // The answer to one line, without its line feed: the result's object, or
  // {"error":{"code","message"}}.
  std::string Answer(Command command, std::string_view line) const;

 private:
  const Tokenizer* tokenizer_;
  absl::StatusOr<ChatTemplate> template_;
};

}  // namespace kvern
