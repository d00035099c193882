// A text filter for tests: token t is the letter 'a' + t mod 26. Stop strings work as in
// production: text that may become one is held back.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "router/core/text_filter.h"

namespace kvern {

class LetterFilter : public TextFilter {
 public:
  LetterFilter(std::vector<std::string> stop, uint32_t min_tokens)
      : stop_(std::move(stop)), min_tokens_(min_tokens) {}

  Piece Append(std::span<const uint32_t> ids, bool final, bool hidden_last) override {
    Piece piece;
    for (size_t i = 0; i < ids.size(); ++i) {
      ++piece.tokens_kept;
      if (hidden_last && i + 1 == ids.size()) break;
      text_ += static_cast<char>('a' + ids[i] % 26);
      for (const std::string& stop : stop_) {
        if (!text_.ends_with(stop) || text_.size() <= min_tokens_) continue;
        piece.stopped = true;
        piece.stop_string = stop;
        piece.text = text_.substr(shown_, text_.size() - stop.size() - shown_);
        return piece;
      }
    }
    size_t end = text_.size() - (final ? 0 : HeldBack());
    piece.text = text_.substr(shown_, end - shown_);
    shown_ = end;
    return piece;
  }

 private:
  // Length of the longest end of the text that begins a stop string.
  size_t HeldBack() const {
    size_t longest = 0;
    for (const std::string& stop : stop_) {
      for (size_t length = 1; length < stop.size() && length <= text_.size(); ++length) {
        if (text_.ends_with(stop.substr(0, length))) longest = std::max(longest, length);
      }
    }
    return longest;
  }

  std::vector<std::string> stop_;
  uint32_t min_tokens_;
  std::string text_;  // one letter per token
  size_t shown_ = 0;
};

class LetterFilterFactory : public TextFilterFactory {
 public:
  std::unique_ptr<TextFilter> NewFilter(const std::vector<std::string>& stop,
                                        uint32_t min_tokens) const override {
    return std::make_unique<LetterFilter>(stop, min_tokens);
  }
};

}  // namespace kvern
