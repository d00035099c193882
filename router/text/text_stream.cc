#include "router/text/text_stream.h"

#include <utility>

#include "cluster/base/check.h"

namespace kvern {

absl::StatusOr<TextStream> TextStream::Create(const Tokenizer* tokenizer,
                                              TextStreamOptions options) {
  KVERN_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create(options.stop));
  return TextStream(tokenizer, std::move(matcher), std::move(options));
}

TextStream::Piece TextStream::Append(std::span<const uint32_t> ids, bool final) {
  KVERN_CHECK(!over_);
  Piece piece;
  over_ = final;
  for (uint32_t id : ids) {
    ++tokens_;
    ++piece.tokens_kept;
    if (Feed(decoder_.Append(id), &piece)) return piece;
  }
  if (!final || Feed(decoder_.Flush(), &piece)) return piece;
  piece.text += matcher_.Flush();
  return piece;
}

bool TextStream::Feed(const std::string& text, Piece* piece) {
  StopMatcher::Result result = matcher_.Append(text, tokens_ > options_.min_tokens);
  piece->text += result.text;
  if (!result.stop) return false;
  piece->stopped = true;
  piece->stop_string = options_.stop[*result.stop];
  over_ = true;
  return true;
}

}  // namespace kvern
