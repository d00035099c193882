// What the router core needs of text: turning a choice's tokens into text and finding stop strings.
// A pure function of the tokens seen so far; router/text implements it, the simulator has its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace kvern {

// One choice's stream. Fed every token of the choice exactly once, in order.
class TextFilter {
 public:
  struct Piece {
    std::string text;         // what may be shown now
    bool stopped = false;     // a stop string is complete; the stream is over
    std::string stop_string;  // which one
    size_t tokens_kept = 0;  // of the tokens given: all, or up to the one that completed the string
  };

  virtual ~TextFilter() = default;

  // `final`: no token follows, so text held back comes out (unless a stop string completes).
  // `hidden_last`: the last of the ids is an EOS or stop id, which shows no text.
  virtual Piece Append(std::span<const uint32_t> ids, bool final, bool hidden_last) = 0;
};

class TextFilterFactory {
 public:
  virtual ~TextFilterFactory() = default;

  // A stop string that ends within the first `min_tokens` tokens is plain text, as in vLLM V1.
  virtual std::unique_ptr<TextFilter> NewFilter(const std::vector<std::string>& stop,
                                                uint32_t min_tokens) const = 0;
};

}  // namespace kvern
