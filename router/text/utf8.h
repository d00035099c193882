// Strict UTF-8, one character at a time (Unicode 15.0, table 3-7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "cluster/base/status.h"

namespace kvern {

// U+FFFD in UTF-8: stands for each ill-formed part of a text.
inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

struct Utf8Char {
  enum class Kind : uint8_t {
    kWhole,       // A well-formed character of `length` bytes.
    kIllFormed,   // `length` bytes that are to become one U+FFFD (a maximal subpart).
    kIncomplete,  // The text ends inside a character that is well-formed so far.
  };
  Kind kind;
  uint8_t length;       // Bytes, 1 to 4.
  uint32_t code_point;  // Only when kWhole.
};

// The character that begins at text[0]. REQUIRES: the text is not empty.
Utf8Char ReadUtf8(std::string_view text);

// OK, or invalid_argument naming the byte offset of the first ill-formed character.
absl::Status CheckUtf8(std::string_view text);

}  // namespace kvern
