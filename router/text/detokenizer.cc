#include "router/text/detokenizer.h"

#include <utility>

#include "router/text/utf8.h"

namespace kvern {

std::string StreamDecoder::Append(uint32_t id) {
  if (skip_special_ && tokenizer_->IsControl(id)) return {};
  const std::string bytes = std::exchange(pending_, {}).append(tokenizer_->TokenBytes(id));
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = ReadUtf8(std::string_view(bytes).substr(at));
    switch (character.kind) {
      case Utf8Char::Kind::kWhole:
        text.append(bytes, at, character.length);
        break;
      case Utf8Char::Kind::kIllFormed:
        text += kReplacementCharacter;
        break;
      case Utf8Char::Kind::kIncomplete:
        pending_.assign(bytes, at);
        return text;
    }
    at += character.length;
  }
  return text;
}

std::string StreamDecoder::Flush() {
  if (pending_.empty()) return {};
  pending_.clear();
  return std::string(kReplacementCharacter);
}

}  // namespace kvern
