#include "router/text/byte_table.h"

#include <array>
#include <cstdint>

#include "router/text/utf8.h"

namespace kvern {
namespace {

constexpr bool StandsForItself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

constexpr uint32_t kTableEnd = 0x144;  // 0x100 + the 68 bytes that do not stand for themselves.
constexpr uint16_t kNoByte = 0x100;

struct Tables {
  std::array<uint16_t, 256> code_point_of_byte{};
  std::array<uint16_t, kTableEnd> byte_of_code_point{};
};

constexpr Tables MakeTables() {
  Tables tables;
  tables.byte_of_code_point.fill(kNoByte);
  uint16_t next = 0x100;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const uint16_t code_point = StandsForItself(byte) ? byte : next++;
    tables.code_point_of_byte[byte] = code_point;
    tables.byte_of_code_point[code_point] = byte;
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

}  // namespace

std::string BytesOfSpelling(std::string_view spelling) {
  std::string bytes;
  bytes.reserve(spelling.size());
  for (size_t at = 0; at < spelling.size();) {
    const Utf8Char character = ReadUtf8(spelling.substr(at));
    at += character.length;
    if (character.code_point >= kTableEnd) return std::string(spelling);
    const uint16_t byte = kTables.byte_of_code_point[character.code_point];
    if (byte == kNoByte) return std::string(spelling);
    bytes.push_back(static_cast<char>(byte));
  }
  return bytes;
}

std::string SpellingOfBytes(std::string_view bytes) {
  std::string spelling;
  spelling.reserve(bytes.size() * 2);
  for (char byte : bytes) {
    const uint32_t code_point = kTables.code_point_of_byte[static_cast<uint8_t>(byte)];
    if (code_point < 0x80) {
      spelling.push_back(static_cast<char>(code_point));
    } else {
      spelling.push_back(static_cast<char>(0xC0 | (code_point >> 6)));
      spelling.push_back(static_cast<char>(0x80 | (code_point & 0x3F)));
    }
  }
  return spelling;
}

}  // namespace kvern
