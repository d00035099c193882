// Finds stop strings in a stream of text and holds back what may become one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"

namespace kvern {

// Not thread-safe: one per stream. Runs Knuth, Morris and Pratt's automaton for each string: at
// most 2 steps for each string and byte, and no more memory than the strings and what is held back.
class StopMatcher {
 public:
  // The limits that requests have too (schemas/client_messages.h).
  static constexpr size_t kMaxStrings = 16;
  static constexpr size_t kMaxStringBytes = 256;

  // No strings: everything passes. invalid_argument: more than kMaxStrings, an empty or
  // ill-formed string, one longer than kMaxStringBytes.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  struct Result {
    std::string text;            // Certain now. Never holds any part of the stop string found.
    std::optional<size_t> stop;  // The index of the string whose last byte was in this text.
  };

  // Feeds whole characters. The stop string that ends first wins; of several that end together the
  // longest. Until a call has may_stop, strings that end in its text count as ordinary text.
  // REQUIRES: no stop was found yet.
  Result Append(std::string_view text, bool may_stop);

  // The end of the stream without a stop: what was held back.
  std::string Flush();

 private:
  struct Automaton {
    std::string stop;
    std::vector<uint16_t> fallback;  // [i]: the longest proper border of the first i bytes.
    size_t matched = 0;              // How much of `stop` the text so far ends with.
  };

  static Automaton MakeAutomaton(std::string stop);
  static size_t Step(const Automaton& automaton, size_t matched, char byte);

  std::vector<Automaton> automata_;
  std::string held_;  // The end of the text so far, as long as the longest `matched`.
  bool stopped_ = false;
};

}  // namespace kvern
