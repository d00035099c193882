// GGUF as hostile input: each test builds a file that is right but for one thing.
#include "schemas/files/gguf.h"

#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/files/limits.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

std::string Refusal(const GgufWriter& writer) { return ErrorOf(OpenGguf(writer)); }

TEST(Gguf, ReadsConfigTensorsAndTokenizer) {
  for (uint32_t version : {2u, 3u}) {
    GgufWriter gguf = TinyGguf();
    gguf.version = version;
    auto checkpoint = OpenGguf(gguf);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.hidden_size, 4u);
    EXPECT_EQ(config.num_heads, 2u);
    EXPECT_EQ(config.num_kv_heads, 1u);
    EXPECT_EQ(config.head_dim, 2u);
    EXPECT_EQ(config.intermediate_size, 6u);
    EXPECT_EQ(config.vocab_size, 3u);
    EXPECT_EQ(config.max_seq_len, 64u);
    EXPECT_EQ(config.rms_norm_eps, 1e-5f);
    EXPECT_EQ(config.rope.theta, 5000.0);
    EXPECT_TRUE(config.tied_embeddings);
    EXPECT_FALSE(config.attention_bias);
    EXPECT_EQ(config.eos_ids, std::vector<uint32_t>{2});
    const TokenizerData* tokenizer = (*checkpoint)->tokenizer();
    ASSERT_NE(tokenizer, nullptr);
    EXPECT_EQ(tokenizer->tokens, (std::vector<std::string>{"a", "b", "ab"}));
    EXPECT_EQ(tokenizer->kinds[2], TokenKind::kControl);
    EXPECT_EQ(tokenizer->merges, std::vector<std::string>{"a b"});
    EXPECT_EQ(tokenizer->pre_tokenizer, "gpt-2");
    auto down = (*checkpoint)->Find("model.layers.0.mlp.down_proj.weight");
    ASSERT_TRUE(down.ok());
    EXPECT_EQ((*down)->shape, (std::vector<uint64_t>{4, 6}));
    std::vector<float> row(6);
    ASSERT_TRUE(
        (*checkpoint)
            ->ReadBytes(**down, 3 * (*down)->row_bytes(), std::as_writable_bytes(std::span(row)))
            .ok());
    EXPECT_EQ(row, (std::vector<float>{18, 19, 20, 21, 22, 23}));
  }
}

TEST(Gguf, EveryPrefixIsRefused) {
  std::string whole = TinyGguf().Build();
  ASSERT_TRUE(OpenGguf(whole).ok());
  for (size_t length = 0; length < whole.size(); ++length) {
    auto checkpoint = OpenGguf(whole.substr(0, length));
    ASSERT_FALSE(checkpoint.ok()) << length << " of " << whole.size() << " bytes";
    EXPECT_THAT(ErrorOf(checkpoint), HasSubstr("mem.gguf"));
  }
}

// No single changed byte may crash; whether the file then loads depends on what the byte was.
TEST(Gguf, EveryByteMayBeWrong) {
  std::string whole = TinyGguf().Build();
  size_t refused = 0;
  for (size_t i = 0; i < whole.size(); ++i) {
    for (char change : {'\x01', '\x80', '\xff'}) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ change);
      if (!OpenGguf(std::move(changed)).ok()) ++refused;
    }
  }
  EXPECT_GT(refused, whole.size() / 2);
}

TEST(Gguf, WhatIsTooShortForAGgufFileIsToldWhatOneIs) {
  for (const char* bytes : {"", "GGU"}) {
    EXPECT_THAT(std::string(OpenGguf(bytes).status().message()),
                HasSubstr("a GGUF file begins with 'GGUF'"));
  }
}

TEST(Gguf, MagicVersionAndByteOrder) {
  GgufWriter gguf = TinyGguf();
  gguf.magic = "GGML";
  EXPECT_THAT(Refusal(gguf), HasSubstr("'GGML'"));
  gguf.magic = "GGUF";
  gguf.version = 1;
  EXPECT_THAT(Refusal(gguf), HasSubstr("found 1, versions 2 and 3"));
  gguf.version = 0x03000000;
  EXPECT_THAT(Refusal(gguf), HasSubstr("big-endian"));
}

TEST(Gguf, CountsBeyondTheFile) {
  GgufWriter gguf = TinyGguf();
  gguf.tensor_count = kHuge;
  EXPECT_THAT(Refusal(gguf), HasSubstr("18446744073709551615 tensors"));
  gguf.tensor_count = kMaxTensors;
  EXPECT_THAT(Refusal(gguf), HasSubstr("tensor 11"));
  gguf.tensor_count.reset();
  gguf.key_count = kHuge;
  EXPECT_THAT(Refusal(gguf), HasSubstr("18446744073709551615 keys"));
}

TEST(Gguf, StringsAndArraysBeyondTheFile) {
  GgufWriter gguf = TinyGguf();
  gguf.Put("general.name", 8, Bytes(kHuge) + "x");
  EXPECT_THAT(Refusal(gguf), HasSubstr("'general.name'"));
  gguf.Put("general.name", 9, Bytes(uint32_t{8}) + Bytes(kHuge));
  EXPECT_THAT(Refusal(gguf), HasSubstr("'general.name'"));
  gguf.Put("general.name", 9, Bytes(uint32_t{10}) + Bytes(kHuge / 4));
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("'general.name'"), HasSubstr("overflow")));
  gguf.Put("general.name", 9, Bytes(uint32_t{0}) + Bytes(kHuge));
  EXPECT_THAT(Refusal(gguf), HasSubstr("'general.name'"));
  gguf.Put("general.name", 9, Bytes(uint32_t{9}) + Bytes(uint64_t{1}));
  EXPECT_THAT(Refusal(gguf), HasSubstr("arrays of arrays"));
  gguf.Put("general.name", 13, "");
  EXPECT_THAT(Refusal(gguf), HasSubstr("unknown value type 13"));
}

TEST(Gguf, KeysMustBeUniqueAndNamed) {
  GgufWriter gguf = TinyGguf();
  gguf.keys.push_back(gguf.keys[1]);
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("'llama.block_count'"), HasSubstr("twice")));
  gguf = TinyGguf();
  gguf.Uint32("", 1);
  EXPECT_THAT(Refusal(gguf), HasSubstr("empty"));
}

TEST(Gguf, Alignment) {
  for (uint32_t alignment : {0u, 3u, 48u, 1u << 30}) {
    GgufWriter gguf = TinyGguf();
    gguf.Uint32("general.alignment", alignment);
    EXPECT_THAT(Refusal(gguf), HasSubstr("'general.alignment'")) << alignment;
  }
  GgufWriter gguf = TinyGguf();
  gguf.Uint32("general.alignment", 64);
  gguf.alignment = 64;
  EXPECT_TRUE(OpenGguf(gguf).ok());
  gguf = TinyGguf();
  gguf.Text("general.alignment", "32");
  EXPECT_THAT(Refusal(gguf), HasSubstr("of type string, not an integer"));
}

TEST(Gguf, TensorDimensions) {
  GgufWriter gguf = TinyGguf();
  gguf.Find("blk.0.attn_q.weight").dims = {};
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("0 dimensions")));
  gguf.Find("blk.0.attn_q.weight").dims = {4, 1, 1, 1, 4};
  EXPECT_THAT(Refusal(gguf), HasSubstr("5 dimensions"));
  gguf.Find("blk.0.attn_q.weight").dims = {4, 0};
  EXPECT_THAT(Refusal(gguf), HasSubstr("dimension 1 is 0"));
  gguf.Find("blk.0.attn_q.weight").dims = {4194305, 4194305, 211106198978564, 1};
  EXPECT_THAT(Refusal(gguf), HasSubstr("overflows"));
  gguf.Find("blk.0.attn_q.weight").dims = {4, 3};
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("model.layers.0.self_attn.q_proj.weight"),
                                   HasSubstr("[3, 4]"), HasSubstr("[4, 4]")));
}

TEST(Gguf, TensorTypes) {
  GgufWriter gguf = TinyGguf();
  gguf.Find("blk.0.attn_q.weight").type = 200;
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("type 200")));
  gguf.Find("blk.0.attn_q.weight").type = 2;
  EXPECT_THAT(Refusal(gguf), HasSubstr("not whole Q4_0 blocks of 32"));
  gguf.Find("blk.0.attn_q.weight").type = 26;
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("self_attn.q_proj.weight"), HasSubstr("type I32")));
}

TEST(Gguf, TensorPlaces) {
  GgufWriter gguf = TinyGguf();
  gguf.Find("blk.0.attn_q.weight").offset = uint64_t{1} << 40;
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("blk.0.attn_q.weight"), HasSubstr("1099511627776"),
                                   HasSubstr("beyond the end of the file")));
  gguf.Find("blk.0.attn_q.weight").offset = kHuge - 31;
  EXPECT_THAT(Refusal(gguf), HasSubstr("beyond the end of the file"));
  gguf.Find("blk.0.attn_q.weight").offset = 4;
  EXPECT_THAT(Refusal(gguf), HasSubstr("not a multiple of the alignment"));
  gguf.Find("blk.0.attn_q.weight").offset = 0;
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("overlaps"), HasSubstr("token_embd.weight"),
                                   HasSubstr("blk.0.attn_q.weight")));
}

TEST(Gguf, TensorNames) {
  GgufWriter gguf = TinyGguf();
  gguf.tensors.push_back(gguf.tensors[3]);
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("'blk.0.attn_q.weight'"), HasSubstr("twice")));
  gguf = TinyGguf();
  gguf.Find("blk.0.attn_v.weight").name = "blk.0.attn_w.weight";
  EXPECT_THAT(Refusal(gguf),
              AllOf(HasSubstr("'model.layers.0.self_attn.v_proj.weight'"), HasSubstr("missing")));
  gguf.tensors[0].name = std::string(kMaxTensorNameBytes + 1, 'x');
  EXPECT_THAT(Refusal(gguf), HasSubstr("257 bytes, the limit is 256"));
  gguf.tensors[0].name = "";
  EXPECT_THAT(Refusal(gguf), HasSubstr("empty"));
  gguf = TinyGguf();
  gguf.tensors.push_back({"model.norm.weight", {1}, 0, Bytes(1.0f), {}});
  EXPECT_THAT(Refusal(gguf), AllOf(HasSubstr("'model.norm.weight'"), HasSubstr("twice")));
}

TEST(Gguf, ControlBytesOfNamesAreEscapedInErrors) {
  GgufWriter gguf = TinyGguf();
  gguf.Find("blk.0.attn_q.weight").type = 200;
  gguf.Find("blk.0.attn_q.weight").name = "evil\x1b[2J\n";
  EXPECT_THAT(Refusal(gguf), HasSubstr("evil\\x1b[2J\\n"));
}

TEST(Gguf, RowsOfQAndKAreUnpermuted) {
  auto checkpoint = OpenGguf(TinyGguf());
  ASSERT_TRUE(checkpoint.ok());
  auto q = (*checkpoint)->Find("model.layers.0.self_attn.q_proj.weight");
  auto v = (*checkpoint)->Find("model.layers.0.self_attn.v_proj.weight");
  EXPECT_TRUE((*q)->interleaved_rows);
  EXPECT_FALSE((*v)->interleaved_rows);
  // head_dim 8: half-pair rows 0 1 2 3 | 4 5 6 7 lie at 0 2 4 6 | 1 3 5 7 of their head.
  std::vector<uint64_t> rows;
  for (uint64_t row = 8; row < 16; ++row) rows.push_back(InterleavedRow(8, row));
  EXPECT_EQ(rows, (std::vector<uint64_t>{8, 10, 12, 14, 9, 11, 13, 15}));
}

TEST(Gguf, ReadsStayInsideTheirTensor) {
  auto checkpoint = OpenGguf(TinyGguf());
  ASSERT_TRUE(checkpoint.ok());
  const TensorInfo& norm = **(*checkpoint)->Find("model.norm.weight");
  std::vector<std::byte> out(8);
  EXPECT_TRUE((*checkpoint)->ReadBytes(norm, 8, out).ok());
  EXPECT_FALSE((*checkpoint)->ReadBytes(norm, 9, out).ok());
  EXPECT_FALSE((*checkpoint)->ReadBytes(norm, kHuge, out).ok());
}

TEST(Gguf, FingerprintFollowsTheModel) {
  GgufWriter gguf = TinyGguf();
  uint64_t first = (*OpenGguf(gguf))->Fingerprint();
  EXPECT_EQ((*OpenGguf(gguf))->Fingerprint(), first);
  gguf.Float32("llama.rope.freq_base", 5001);
  EXPECT_NE((*OpenGguf(gguf))->Fingerprint(), first);
  gguf = TinyGguf();
  std::swap(gguf.tensors[8], gguf.tensors[9]);
  EXPECT_NE((*OpenGguf(gguf))->Fingerprint(), first);
}

}  // namespace
}  // namespace kvern
