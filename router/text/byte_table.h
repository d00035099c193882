// GPT-2's byte table: how vocabularies of byte-level BPE spell bytes as printable characters.
#pragma once

#include <string>
#include <string_view>

namespace kvern {

// The bytes that a token's spelling stands for ("Ġhello" -> " hello"). A spelling with a character
// outside the table stands for itself. REQUIRES: well-formed UTF-8.
// Source: the table of GPT-2's encoder: the bytes 21-7E, A1-AC and AE-FF stand for the code points
// of the same number, the other 68, in ascending order, for U+0100, U+0101, ...
std::string BytesOfSpelling(std::string_view spelling);

// The other direction: the spelling of any bytes.
std::string SpellingOfBytes(std::string_view bytes);

}  // namespace kvern
