#include "router/text/utf8.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "router/text/byte_table.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;
using Kind = Utf8Char::Kind;

// The text with one '?' for each ill-formed part and one '~' for an unfinished end.
std::string Shape(std::string_view text) {
  std::string shape;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char character = ReadUtf8(text.substr(at));
    EXPECT_GE(character.length, 1);
    EXPECT_LE(at + character.length, text.size());
    shape += character.kind == Kind::kWhole       ? text.substr(at, character.length)
             : character.kind == Kind::kIllFormed ? "?"
                                                  : "~";
    at += character.length;
  }
  return shape;
}

TEST(Utf8, ReadsWellFormedCharacters) {
  EXPECT_EQ(ReadUtf8("A").code_point, 0x41u);
  EXPECT_EQ(ReadUtf8("\xC3\xA9").code_point, 0xE9u);
  EXPECT_EQ(ReadUtf8("\xE6\xBC\xA2").code_point, 0x6F22u);
  EXPECT_EQ(ReadUtf8("\xF0\x9F\x98\x80").code_point, 0x1F600u);
  EXPECT_EQ(ReadUtf8("\xF4\x8F\xBF\xBF").code_point, 0x10FFFFu);
  EXPECT_EQ(ReadUtf8(std::string_view("\0", 1)).kind, Kind::kWhole);
}

TEST(Utf8, EachMaximalSubpartIsOneIllFormedPart) {
  EXPECT_EQ(Shape("a\x80"
                  "b"),
            "a?b");
  EXPECT_EQ(Shape("\xC0\xAF"), "??");            // overlong
  EXPECT_EQ(Shape("\xED\xA0\x80"), "???");       // surrogate
  EXPECT_EQ(Shape("\xF4\x90\x80\x80"), "????");  // above U+10FFFF
  EXPECT_EQ(Shape("\xE6\xBC"
                  "a"),
            "?a");  // truncated in the middle
  EXPECT_EQ(Shape("\xF0\x9F\x98"
                  "a"),
            "?a");
  EXPECT_EQ(Shape("\xE0\x80\x80"), "???");
}

TEST(Utf8, AnEndInsideACharacterIsIncomplete) {
  EXPECT_EQ(Shape("a\xC3"), "a~");
  EXPECT_EQ(Shape("\xF0\x9F\x98"), "~");
  EXPECT_EQ(Shape("\xF0\x8F"), "??");  // No character begins so: not merely incomplete.
}

TEST(Utf8, CheckNamesTheOffset) {
  EXPECT_TRUE(CheckUtf8("gr\xC3\xB6\xC3\x9F"
                        "er")
                  .ok());
  EXPECT_TRUE(CheckUtf8("").ok());
  EXPECT_THAT(std::string(CheckUtf8("caf\xE9").message()), HasSubstr("byte 3"));
  EXPECT_THAT(std::string(CheckUtf8("ab\xFF"
                                    "c")
                              .message()),
              HasSubstr("byte 2"));
}

TEST(ByteTable, KnownSpellings) {
  EXPECT_EQ(SpellingOfBytes(" the"), "\xC4\xA0the");  // U+0120
  EXPECT_EQ(SpellingOfBytes("\n"), "\xC4\x8A");       // U+010A
  EXPECT_EQ(SpellingOfBytes("\xAD"), "\xC5\x83");     // U+0143, the last of the table
  EXPECT_EQ(BytesOfSpelling("\xC4\xA0the"), " the");
}

TEST(ByteTable, EveryByteComesBack) {
  std::string bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.push_back(static_cast<char>(byte));
  EXPECT_EQ(BytesOfSpelling(SpellingOfBytes(bytes)), bytes);
}

TEST(ByteTable, ASpellingOutsideTheTableStandsForItself) {
  EXPECT_EQ(BytesOfSpelling("a\xE6\xBC\xA2"), "a\xE6\xBC\xA2");
  EXPECT_EQ(BytesOfSpelling("a b"), "a b");  // The plain space is not in the table.
}

}  // namespace
}  // namespace kvern
