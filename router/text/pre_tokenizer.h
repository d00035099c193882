// Cuts text into the parts inside which BPE may merge. Hand-written matchers instead of a regular
// expression engine: linear time and a bounded stack on any input.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "cluster/base/status.h"

namespace kvern {

// The two pre-tokenizers known so far, by the names that GGUF files use. Both split by GPT-2's
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// and "smollm" first cuts out every single \p{N} character; a pattern never looks past its part.
class PreTokenizer {
 public:
  // Unimplemented, naming the allowed names, for any other name.
  static absl::StatusOr<PreTokenizer> Create(std::string_view name);

  // The end of the part that begins at text[begin]; begin < end <= text.size(). Adds the characters
  // looked at to `steps`: at most 3 for each character of a text cut from front to back, plus 3.
  // REQUIRES: begin < text.size(), text is well-formed UTF-8.
  size_t PartEnd(std::string_view text, size_t begin, uint64_t* steps) const;

 private:
  explicit PreTokenizer(bool digits_alone) : digits_alone_(digits_alone) {}

  bool digits_alone_;
};

}  // namespace kvern
