#include "router/text/pre_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<std::string> Parts(std::string_view name, std::string_view text) {
  const absl::StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::Create(name);
  EXPECT_TRUE(pre_tokenizer.ok());
  std::vector<std::string> parts;
  uint64_t steps = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = pre_tokenizer->PartEnd(text, begin, &steps);
    EXPECT_GT(end, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  EXPECT_LE(steps, 3 * text.size() + 3);
  return parts;
}

TEST(PreTokenizer, WordsTakeTheSpaceBeforeThem) {
  EXPECT_THAT(Parts("gpt-2", "Hello big  world"), ElementsAre("Hello", " big", " ", " world"));
}

TEST(PreTokenizer, Contractions) {
  EXPECT_THAT(Parts("gpt-2", "he'll won't I'm"),
              ElementsAre("he", "'ll", " won", "'t", " I", "'m"));
  EXPECT_THAT(Parts("gpt-2", "'sure"), ElementsAre("'s", "ure"));
  EXPECT_THAT(Parts("gpt-2", "it'S"), ElementsAre("it", "'", "S"));
  EXPECT_THAT(Parts("gpt-2", "a 's"), ElementsAre("a", " '", "s"));
}

TEST(PreTokenizer, PunctuationRuns) {
  EXPECT_THAT(Parts("gpt-2", "a!? ++b"), ElementsAre("a", "!?", " ++", "b"));
}

TEST(PreTokenizer, NumbersTogetherInGpt2AloneInSmollm) {
  EXPECT_THAT(Parts("gpt-2", "x 12 3a"), ElementsAre("x", " 12", " 3", "a"));
  EXPECT_THAT(Parts("smollm", "x 12 3a"), ElementsAre("x", " ", "1", "2", " ", "3", "a"));
}

TEST(PreTokenizer, WhiteSpaceBeforeANumberIsWholeInSmollm) {
  EXPECT_THAT(Parts("gpt-2", "Hello  1"), ElementsAre("Hello", " ", " 1"));
  EXPECT_THAT(Parts("smollm", "Hello  1"), ElementsAre("Hello", "  ", "1"));
}

TEST(PreTokenizer, WhiteSpaceRunsLeaveTheirLastCharacter) {
  EXPECT_THAT(Parts("gpt-2", "a\n\n b"), ElementsAre("a", "\n\n", " b"));
  EXPECT_THAT(Parts("gpt-2", "a \n\nb"), ElementsAre("a", " \n", "\n", "b"));
  EXPECT_THAT(Parts("gpt-2", "a\tb"), ElementsAre("a", "\t", "b"));
  EXPECT_THAT(Parts("gpt-2", "a   "), ElementsAre("a", "   "));
}

TEST(PreTokenizer, ClassesAreUnicodes) {
  // Letters, a number (roman twelve), the ideographic space, a symbol.
  EXPECT_THAT(Parts("gpt-2", "\xC3\xA9\xE6\xBC\xA2\xE2\x85\xAB\xE3\x80\x80\xE2\x82\xAC"),
              ElementsAre("\xC3\xA9\xE6\xBC\xA2", "\xE2\x85\xAB", "\xE3\x80\x80", "\xE2\x82\xAC"));
}

TEST(PreTokenizer, UnknownNamesAreRefusedByName) {
  const absl::Status status = PreTokenizer::Create("llama-bpe").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("llama-bpe"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("gpt-2, smollm"));
}

}  // namespace
}  // namespace kvern
