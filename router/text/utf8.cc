#include "router/text/utf8.h"

#include "cluster/base/check.h"

namespace kvern {
namespace {

// What a first byte announces: the length, and the range of the second byte, which keeps out
// overlong forms, surrogates and everything above U+10FFFF. Length 0: no character begins so.
struct Lead {
  uint8_t length;
  uint8_t second_min;
  uint8_t second_max;
};

constexpr Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Char ReadUtf8(std::string_view text) {
  KVERN_CHECK(!text.empty());
  const uint8_t first = static_cast<uint8_t>(text[0]);
  const Lead lead = LeadOf(first);
  if (lead.length == 0) return {Utf8Char::Kind::kIllFormed, 1, 0};
  if (lead.length == 1) return {Utf8Char::Kind::kWhole, 1, first};
  uint32_t code_point = first & (0x7Fu >> lead.length);
  for (uint8_t i = 1; i < lead.length; ++i) {
    if (i == text.size()) return {Utf8Char::Kind::kIncomplete, i, 0};
    const uint8_t byte = static_cast<uint8_t>(text[i]);
    const uint8_t min = i == 1 ? lead.second_min : 0x80;
    const uint8_t max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Char::Kind::kIllFormed, i, 0};
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {Utf8Char::Kind::kWhole, lead.length, code_point};
}

absl::Status CheckUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = ReadUtf8(text.substr(at));
    if (character.kind != Utf8Char::Kind::kWhole) {
      return InvalidArgument("ill-formed UTF-8 at byte ", at);
    }
    at += character.length;
  }
  return absl::OkStatus();
}

}  // namespace kvern
