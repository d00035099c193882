// StreamDecoder, StopMatcher and TextStream.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/rng.h"
#include "router/text/text_stream.h"
#include "tests/router/text/small_vocab.h"

namespace kvern {
namespace {

using ::testing::HasSubstr;
using Ids = std::vector<uint32_t>;

const Tokenizer& SmallTokenizer() {
  static const Tokenizer* tokenizer = new Tokenizer(*Tokenizer::Create(SmallVocab("gpt-2")));
  return *tokenizer;
}

Ids Bytes(std::string_view text) {
  Ids ids;
  for (char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

StopMatcher Matcher(std::vector<std::string> stops) {
  absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(std::move(stops));
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

TextStream Stream(TextStreamOptions options) {
  absl::StatusOr<TextStream> stream = TextStream::Create(&SmallTokenizer(), std::move(options));
  EXPECT_TRUE(stream.ok()) << stream.status();
  return *std::move(stream);
}

TEST(StreamDecoder, HoldsACharacterUntilItIsWhole) {
  StreamDecoder decoder(&SmallTokenizer(), false);
  EXPECT_EQ(decoder.Append('a'), "a");
  EXPECT_EQ(decoder.Append(0xE6), "");
  EXPECT_EQ(decoder.Append(0xBC), "");
  EXPECT_EQ(decoder.Append(0xA2), "\xE6\xBC\xA2");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(StreamDecoder, IllFormedBytesComeOutAtOnce) {
  StreamDecoder decoder(&SmallTokenizer(), false);
  EXPECT_EQ(decoder.Append(0xE6), "");
  EXPECT_EQ(decoder.Append('a'),
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(decoder.Append(0xFF), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Append(0xF0), "");
  EXPECT_EQ(decoder.Flush(), "\xEF\xBF\xBD");
  EXPECT_EQ(decoder.Flush(), "");
}

TEST(StreamDecoder, SkippedControlTokensDoNotBreakACharacter) {
  const auto decode = [](bool skip_special) {
    StreamDecoder decoder(&SmallTokenizer(), skip_special);
    std::string text;
    for (uint32_t id : {0xC3u, 264u, 0xA9u}) text += decoder.Append(id);
    return text;
  };
  EXPECT_EQ(decode(true), "\xC3\xA9");
  EXPECT_EQ(decode(false), "\xEF\xBF\xBD<|im_end|>\xEF\xBF\xBD");
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStopString) {
  StopMatcher matcher = Matcher({"END"});
  EXPECT_EQ(matcher.Append("abE", true).text, "ab");
  EXPECT_EQ(matcher.Append("N", true).text, "");
  EXPECT_EQ(matcher.Append("x", true).text, "ENx");
  EXPECT_EQ(matcher.Append("EN", true).text, "");
  const StopMatcher::Result result = matcher.Append("D more", true);
  EXPECT_EQ(result.stop, std::optional<size_t>(0));
  EXPECT_EQ(result.text, "");
}

TEST(StopMatcher, FlushGivesWhatWasHeld) {
  StopMatcher matcher = Matcher({"\n\n"});
  EXPECT_EQ(matcher.Append("a\n", true).text, "a");
  EXPECT_EQ(matcher.Flush(), "\n");
}

TEST(StopMatcher, TheFirstToEndWinsThenTheLongest) {
  StopMatcher first = Matcher({"abcd", "bc"});
  StopMatcher::Result result = first.Append("xabcd", true);
  EXPECT_EQ(result.stop, std::optional<size_t>(1));
  EXPECT_EQ(result.text, "xa");
  StopMatcher longest = Matcher({"c", "abc"});
  result = longest.Append("xabc", true);
  EXPECT_EQ(result.stop, std::optional<size_t>(1));
  EXPECT_EQ(result.text, "x");
}

TEST(StopMatcher, BordersAreFollowed) {
  StopMatcher matcher = Matcher({"aabaab#"});
  EXPECT_EQ(matcher.Append("aabaaabaab", true).text, "aaba");
  const StopMatcher::Result result = matcher.Append("#", true);
  EXPECT_EQ(result.text, "");
  EXPECT_TRUE(result.stop.has_value());
}

// The stream cut anywhere gives what a search of the whole text gives.
TEST(StopMatcher, EqualsASearchOfTheWholeText) {
  Rng rng(7);
  for (int round = 0; round < 3000; ++round) {
    const auto random_text = [&](size_t length) {
      std::string text;
      for (size_t i = 0; i < length; ++i) text.push_back("ab"[rng.Below(2)]);
      return text;
    };
    std::vector<std::string> stops;
    for (uint64_t i = 0; i <= rng.Below(3); ++i) stops.push_back(random_text(2 + rng.Below(5)));
    const std::string text = random_text(1 + rng.Below(40));
    size_t best_end = std::string::npos;
    size_t best_begin = std::string::npos;
    for (const std::string& stop : stops) {
      const size_t begin = text.find(stop);
      if (begin == std::string::npos) continue;
      const size_t end = begin + stop.size();
      if (end < best_end || (end == best_end && begin < best_begin)) {
        best_end = end;
        best_begin = begin;
      }
    }
    StopMatcher matcher = Matcher(stops);
    std::string streamed;
    std::optional<size_t> stop;
    for (size_t at = 0; at < text.size() && !stop;) {
      const size_t length = 1 + rng.Below(4);
      StopMatcher::Result result = matcher.Append(std::string_view(text).substr(at, length), true);
      streamed += result.text;
      stop = result.stop;
      at += length;
    }
    if (!stop) streamed += matcher.Flush();
    EXPECT_EQ(streamed, text.substr(0, best_begin)) << text;
    EXPECT_EQ(stop.has_value(), best_begin != std::string::npos) << text;
  }
}

TEST(StopMatcher, LimitsAreNamed) {
  const auto error_of = [](std::vector<std::string> stops) {
    return std::string(StopMatcher::Create(std::move(stops)).status().message());
  };
  EXPECT_THAT(error_of(std::vector<std::string>(17, "a")), HasSubstr("17 strings, allowed 16"));
  EXPECT_THAT(error_of({"a", ""}), HasSubstr("stop[1]: 0 bytes"));
  EXPECT_THAT(error_of({std::string(257, 'a')}), HasSubstr("stop[0]: 257 bytes, allowed 1 to 256"));
  EXPECT_THAT(error_of({"\xC3"}), HasSubstr("stop[0]: ill-formed UTF-8"));
  EXPECT_TRUE(StopMatcher::Create(std::vector<std::string>(16, std::string(256, 'a'))).ok());
}

TEST(TextStream, KeepsTheTokenThatCompletesTheStopString) {
  TextStream stream = Stream({.stop = {"#the"}});
  TextStream::Piece piece = stream.Append(Ids{'x', '#', 't'}, false);
  EXPECT_EQ(piece.text, "x");
  EXPECT_EQ(piece.tokens_kept, 3u);
  EXPECT_FALSE(piece.stopped);
  piece = stream.Append(Ids{257, 'y', 'z'}, true);
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.stop_string, "#the");
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.tokens_kept, 1u);
}

TEST(TextStream, FinalFlushesTextAndUnfinishedCharacters) {
  TextStream stream = Stream({.stop = {"ab!"}});
  EXPECT_EQ(stream.Append(Bytes("ab"), false).text, "");
  const TextStream::Piece piece = stream.Append(Ids{0xE6}, true);
  EXPECT_EQ(piece.text, "ab\xEF\xBF\xBD");
  EXPECT_EQ(piece.tokens_kept, 1u);
  EXPECT_FALSE(piece.stopped);
}

TEST(TextStream, AnEmptyFinalRunFlushes) {
  TextStream stream = Stream({.stop = {"ab"}});
  EXPECT_EQ(stream.Append(Bytes("a"), false).text, "");
  const TextStream::Piece piece = stream.Append({}, true);
  EXPECT_EQ(piece.text, "a");
  EXPECT_EQ(piece.tokens_kept, 0u);
}

TEST(TextStream, ControlTokensEmitNoText) {
  TextStream stream = Stream({});
  EXPECT_EQ(stream.Append(Ids{'a', 264}, true).text, "a");
  TextStream showing = Stream({.stop = {}, .skip_special = false});
  EXPECT_EQ(showing.Append(Ids{'a', 264}, true).text, "a<|im_end|>");
}

TEST(TextStream, StopStringsCountOnlyAfterMinTokens) {
  TextStream stream = Stream({.stop = {"ab"}, .min_tokens = 3});
  TextStream::Piece piece = stream.Append(Bytes("ab"), false);
  EXPECT_FALSE(piece.stopped);
  EXPECT_EQ(piece.text, "ab");
  piece = stream.Append(Bytes("abc"), false);  // Tokens 3 to 5; "ab" ends in the fourth.
  EXPECT_TRUE(piece.stopped);
  EXPECT_EQ(piece.text, "");
  EXPECT_EQ(piece.tokens_kept, 2u);
}

TEST(TextStream, TheLastOfMinTokensStillCannotStop) {
  TextStream at_two = Stream({.stop = {"ab"}, .min_tokens = 2});
  EXPECT_FALSE(at_two.Append(Bytes("ab"), false).stopped);
  TextStream at_one = Stream({.stop = {"ab"}, .min_tokens = 1});
  EXPECT_TRUE(at_one.Append(Bytes("ab"), false).stopped);
}

}  // namespace
}  // namespace kvern
