// The text side of one choice of one request: tokens in, text that is certain and stops out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cluster/base/status.h"
#include "router/text/detokenizer.h"
#include "router/text/stop_matcher.h"
#include "router/text/tokenizer.h"

namespace kvern {

struct TextStreamOptions {
  std::vector<std::string> stop;  // Within the limits of StopMatcher.
  uint32_t min_tokens = 0;        // Stop strings that end in the first min_tokens are text.
  bool skip_special = true;       // Control tokens, EOS among them, emit no text.
};

// Not thread-safe: one per choice.
class TextStream {
 public:
  struct Piece {
    std::string text;         // New text: whole characters, nothing that may become a stop string.
    bool stopped = false;     // A stop string was completed; the stream is over.
    std::string stop_string;  // Which, if so.
    size_t tokens_kept = 0;   // Of this run: all, or up to the one that completed the stop string.
  };

  // `tokenizer` must outlive this. invalid_argument as StopMatcher::Create.
  static absl::StatusOr<TextStream> Create(const Tokenizer* tokenizer, TextStreamOptions options);

  // Feeds the next run of tokens, without the EOS or stop id that ended the generation where that
  // should emit no text. `final`: no more follow, so what was held back comes out.
  // REQUIRES: neither a final run nor a stop came before.
  Piece Append(std::span<const uint32_t> ids, bool final);

 private:
  TextStream(const Tokenizer* tokenizer, StopMatcher matcher, TextStreamOptions options)
      : options_(std::move(options)),
        decoder_(tokenizer, options_.skip_special),
        matcher_(std::move(matcher)) {}

  // Runs one token's text through the matcher; true if it completed a stop string.
  bool Feed(const std::string& text, Piece* piece);

  TextStreamOptions options_;
  StreamDecoder decoder_;
  StopMatcher matcher_;
  uint64_t tokens_ = 0;  // Fed so far, over all runs.
  bool over_ = false;
};

}  // namespace kvern
