#include "router/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/router/text/small_vocab.h"

namespace kvern {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<uint32_t>;

Tokenizer MakeTokenizer(TokenizerData data) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(std::move(data));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text, EncodeOptions options = {}) {
  absl::StatusOr<Ids> ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return *std::move(ids);
}

std::string CreateError(const TokenizerData& data) {
  return std::string(Tokenizer::Create(data).status().message());
}

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  EXPECT_THAT(Encode(tokenizer, " the"), ElementsAre(258));
  EXPECT_THAT(Encode(tokenizer, "thing"), ElementsAre('t', 'h', 260));
  EXPECT_THAT(Encode(tokenizer, "aaaaaaa"), ElementsAre(262, 261, 'a'));
  EXPECT_THAT(Encode(tokenizer, ""), ElementsAre());
}

TEST(Tokenizer, EqualsMergesInRankOrderOnRandomText) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  // The rule itself, spelled out: again and again the best-ranked pair, leftmost among equals.
  const struct {
    uint32_t left, right, merged;
  } kRules[] = {{' ', 't', 256}, {'h', 'e', 257}, {256, 257, 258}, {'i', 'n', 259},
                {259, 'g', 260}, {'a', 'a', 261}, {261, 261, 262}};
  uint32_t state = 1;
  for (int round = 0; round < 500; ++round) {
    std::string word;
    for (int i = 0; i < 12; ++i) {
      state = state * 1664525u + 1013904223u;
      word.push_back("aahetin"[(state >> 24) % 7]);
    }
    Ids expected(word.begin(), word.end());
    for (const auto& rule : kRules) {
      for (size_t i = 0; i + 1 < expected.size(); ++i) {
        if (expected[i] != rule.left || expected[i + 1] != rule.right) continue;
        expected[i] = rule.merged;
        expected.erase(expected.begin() + static_cast<ptrdiff_t>(i) + 1);
      }
    }
    EXPECT_EQ(Encode(tokenizer, word), expected) << word;
  }
}

TEST(Tokenizer, ControlTokensOnlyWhenAsked) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  const EncodeOptions parse{.parse_special = true, .add_special = false};
  EXPECT_THAT(Encode(tokenizer, "a<|im_end|>b", parse), ElementsAre('a', 264, 'b'));
  EXPECT_EQ(Encode(tokenizer, "<|im_end|>").size(), 10u);
  // The longest wins; a prefix of a token that does not go on is the shorter token or text.
  EXPECT_THAT(Encode(tokenizer, "<|im_", parse), ElementsAre(265, '_'));
  EXPECT_THAT(Encode(tokenizer, "<|i<|im_start|>", parse), ElementsAre('<', '|', 'i', 263));
  EXPECT_THAT(Encode(tokenizer, "<tool>"), ElementsAre(266)) << "user-defined tokens always";
}

TEST(Tokenizer, BosOnlyIfTheModelAsks) {
  const EncodeOptions add{.parse_special = false, .add_special = true};
  TokenizerData data = SmallVocab("gpt-2");
  EXPECT_THAT(Encode(MakeTokenizer(data), "a", add), ElementsAre('a'));
  data.add_bos = true;
  EXPECT_THAT(Encode(MakeTokenizer(data), "a", add), ElementsAre(263, 'a'));
  EXPECT_THAT(Encode(MakeTokenizer(data), "a"), ElementsAre('a'));
}

TEST(Tokenizer, PiecesParseOnlyTheirOwnControlTokens) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  const std::vector<PromptPiece> pieces = {{"<|im_start|>", true},
                                           {"t", false},
                                           {"h<|im", false},
                                           {"_end|>", false},
                                           {"<|im_end|>", true}};
  const absl::StatusOr<Ids> ids = tokenizer.EncodePieces(pieces, false);
  ASSERT_TRUE(ids.ok());
  Ids expected = {263};
  for (char c : std::string("th<|im_end|>")) expected.push_back(static_cast<uint32_t>(c));
  expected.push_back(264);
  EXPECT_EQ(*ids, expected);
  // Text of neighbouring pieces merges as one text.
  const std::vector<PromptPiece> split = {{" t", false}, {"he", false}};
  EXPECT_EQ(*tokenizer.EncodePieces(split, false), Ids{258});
  for (const char* missing : {"<|user|>", "<|im_end|>x", "<|im_end|", "", "<tool>"}) {
    const std::vector<PromptPiece> piece = {{missing, true}};
    EXPECT_EQ(tokenizer.EncodePieces(piece, false).status().code(),
              absl::StatusCode::kFailedPrecondition)
        << missing;
  }
}

TEST(Tokenizer, BytesWithoutATokenAreDropped) {
  TokenizerData data = SmallVocab("gpt-2");
  data.tokens['z'] = "another";
  const Tokenizer tokenizer = MakeTokenizer(data);
  EXPECT_THAT(Encode(tokenizer, "azb"), ElementsAre('a', 'b'));
  EXPECT_THAT(Encode(tokenizer, "z"), ElementsAre());
}

TEST(Tokenizer, MoreIdsThanWantedAreRefused) {
  TokenizerData data = SmallVocab("gpt-2");
  data.tokens['z'] = "another";
  const Tokenizer tokenizer = MakeTokenizer(data);
  for (std::string_view text :
       {"the thing in", "<tool><tool>a", "aaaaaaaaaaaaa", "zzzzzz", "", "a1b2c"}) {
    const Ids all = Encode(tokenizer, text);
    EncodeOptions options;
    options.max_ids = all.size();
    EXPECT_EQ(Encode(tokenizer, text, options), all) << text;
    const std::vector<PromptPiece> pieces = {{"<|im_start|>", true}, {std::string(text), false}};
    EXPECT_TRUE(tokenizer.EncodePieces(pieces, false, all.size() + 1).ok()) << text;
    EXPECT_EQ(tokenizer.EncodePieces(pieces, false, all.size()).status().code(),
              absl::StatusCode::kOutOfRange)
        << text;
    if (all.empty()) continue;
    --options.max_ids;
    EXPECT_EQ(tokenizer.Encode(text, options).status().code(), absl::StatusCode::kOutOfRange)
        << text;
  }
}

// In words, or in one part that is as long as the text: what is merged has a bound, whatever comes.
TEST(Tokenizer, ATextThatIsFarTooLongCostsLittleMoreThanToLookAtIt) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  for (std::string_view word : {"the thing ", "a", "in"}) {
    std::string text;
    while (text.size() < (1 << 20)) text += word;
    EncodeOptions options;
    EncodeStats whole;
    ASSERT_TRUE(tokenizer.Encode(text, options, &whole).ok());
    EncodeStats cut;
    options.max_ids = 100;
    EXPECT_FALSE(tokenizer.Encode(text, options, &cut).ok());
    EXPECT_LE(cut.steps, 3 * text.size()) << word;
    EXPECT_GT(whole.steps, 4 * text.size()) << word;
  }
}

TEST(Tokenizer, IllFormedTextNamesTheByte) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  const absl::Status status = tokenizer.Encode("caf\xE9", {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("byte 3"));
}

TEST(Tokenizer, IdsBeyondTheVocabulary) {
  const Tokenizer tokenizer = MakeTokenizer(SmallVocab("gpt-2"));
  EXPECT_EQ(tokenizer.vocab_size(), 267u);
  EXPECT_EQ(tokenizer.TokenBytes(258), " the");
  EXPECT_EQ(tokenizer.TokenBytes(263), "<|im_start|>");
  EXPECT_EQ(tokenizer.TokenBytes(267), "");
  EXPECT_FALSE(tokenizer.IsControl(4000000000u));
  EXPECT_TRUE(tokenizer.CheckIds(Ids{0, 266}).ok());
  EXPECT_THAT(std::string(tokenizer.CheckIds(Ids{0, 267}).message()),
              HasSubstr("ids[1]: 267, allowed 0 to 266"));
}

TEST(TokenizerCreate, RefusesWhatItDoesNotKnowByName) {
  TokenizerData data = SmallVocab("gpt-2");
  data.model = "llama";
  EXPECT_THAT(CreateError(data), HasSubstr("'llama'"));
  data = SmallVocab("mystery");
  EXPECT_THAT(CreateError(data), HasSubstr("'mystery'"));
  data = SmallVocab("gpt-2");
  data.add_space_prefix = true;
  EXPECT_THAT(CreateError(data), HasSubstr("add_space_prefix"));
}

TEST(TokenizerCreate, RefusesBrokenVocabularies) {
  TokenizerData data = SmallVocab("gpt-2");
  data.kinds.pop_back();
  EXPECT_THAT(CreateError(data), HasSubstr("266 entries for 267 tokens"));
  data = SmallVocab("gpt-2");
  data.tokens[7].clear();
  EXPECT_THAT(CreateError(data), HasSubstr("token 7: 0 bytes"));
  data = SmallVocab("gpt-2");
  data.tokens[7] = std::string(Tokenizer::kMaxTokenBytes + 1, 'a');
  EXPECT_THAT(CreateError(data), HasSubstr("token 7: 4097 bytes"));
  data = SmallVocab("gpt-2");
  data.tokens[7] = "\xFF";
  EXPECT_THAT(CreateError(data), HasSubstr("token 7: ill-formed UTF-8"));
  data = SmallVocab("gpt-2");
  data.tokens[266] = data.tokens[65];
  EXPECT_THAT(CreateError(data), HasSubstr("token 266: same text as token 65"));
  data = SmallVocab("gpt-2");
  data.eos_id = 267;
  EXPECT_THAT(CreateError(data), HasSubstr("267, allowed 0 to 266"));
  data = TokenizerData();
  data.model = "gpt2";
  EXPECT_THAT(CreateError(data), HasSubstr("tokens: 0 entries"));
}

TEST(TokenizerCreate, RefusesBrokenMerges) {
  const auto error_of = [](std::string merge) {
    TokenizerData data = SmallVocab("gpt-2");
    data.merges.push_back(std::move(merge));
    return CreateError(data);
  };
  EXPECT_THAT(error_of("ab"), HasSubstr("merge 7: not two tokens"));
  EXPECT_THAT(error_of("a b c"), HasSubstr("merge 7: not two tokens"));
  EXPECT_THAT(error_of("xy z"), HasSubstr("merge 7: the left side"));
  EXPECT_THAT(error_of("z xy"), HasSubstr("merge 7: the right side"));
  EXPECT_THAT(error_of("x y"), HasSubstr("merge 7: the result"));
  EXPECT_THAT(error_of("h e"), HasSubstr("merge 7: same pair"));
  TokenizerData data = SmallVocab("gpt-2");
  data.tokens.push_back("xy");
  data.kinds.push_back(TokenKind::kControl);
  data.merges.push_back("x y");
  EXPECT_THAT(CreateError(data), HasSubstr("merge 7: makes control token 267"));
}

}  // namespace
}  // namespace kvern
