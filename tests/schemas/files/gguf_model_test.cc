// What GGUF metadata may say about the model and its tokenizer.
#include "schemas/files/gguf_model.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string RefusalWith(const std::string& key, uint32_t value) {
  GgufWriter gguf = TinyGguf();
  gguf.Uint32(key, value);
  return ErrorOf(OpenGguf(gguf));
}

std::string RefusalWith(const std::string& key, float value) {
  GgufWriter gguf = TinyGguf();
  gguf.Float32(key, value);
  return ErrorOf(OpenGguf(gguf));
}

TEST(GgufModel, NumbersOutOfRangeAreNamed) {
  for (const char* key : {"llama.block_count", "llama.context_length", "llama.embedding_length",
                          "llama.feed_forward_length", "llama.attention.head_count",
                          "llama.attention.head_count_kv"}) {
    EXPECT_THAT(RefusalWith(key, 0u), AllOf(HasSubstr(key), HasSubstr("is 0"))) << key;
    EXPECT_THAT(RefusalWith(key, 4000000000u), AllOf(HasSubstr(key), HasSubstr("is 4000000000")));
    GgufWriter gguf = TinyGguf();
    gguf.Put(key, 5, Bytes(int32_t{-7}));
    EXPECT_THAT(ErrorOf(OpenGguf(gguf)), AllOf(HasSubstr(key), HasSubstr("is -7")));
  }
}

TEST(GgufModel, RequiredKeys) {
  for (const char* key : {"general.architecture", "llama.block_count", "llama.context_length",
                          "llama.embedding_length", "llama.feed_forward_length",
                          "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon"}) {
    GgufWriter gguf = TinyGguf();
    gguf.Remove(key);
    EXPECT_THAT(ErrorOf(OpenGguf(gguf)), AllOf(HasSubstr(key), HasSubstr("missing"))) << key;
  }
}

TEST(GgufModel, FloatsMustBeFiniteAndSane) {
  for (const char* key : {"llama.rope.freq_base", "llama.attention.layer_norm_rms_epsilon"}) {
    for (float value : {0.0f, -1.0f, std::nanf(""), std::numeric_limits<float>::infinity()}) {
      EXPECT_THAT(RefusalWith(key, value), HasSubstr(key)) << value;
    }
  }
}

TEST(GgufModel, HeadsMustDivide) {
  EXPECT_THAT(RefusalWith("llama.attention.head_count", 3u), HasSubstr("not a multiple"));
  EXPECT_THAT(RefusalWith("llama.attention.head_count_kv", 3u), HasSubstr("not a multiple"));
  EXPECT_THAT(RefusalWith("llama.attention.key_length", 3u), HasSubstr("must be even"));
  EXPECT_THAT(RefusalWith("llama.rope.dimension_count", 1u), HasSubstr("dimension_count is 1"));
  // A multiple, but not what the tensors have.
  EXPECT_THAT(RefusalWith("llama.attention.head_count_kv", 2u), HasSubstr("k_proj.weight"));
}

TEST(GgufModel, VariantsAreRefusedByName) {
  GgufWriter gguf = TinyGguf();
  gguf.Text("general.architecture", "qwen2");
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("'qwen2'"));
  EXPECT_THAT(RefusalWith("llama.expert_count", 8u), HasSubstr("llama.expert_count is 8"));
  EXPECT_THAT(RefusalWith("split.count", 2u), HasSubstr("split.count is 2"));
  gguf = TinyGguf();
  gguf.Text("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("'yarn'"));
  gguf = TinyGguf();
  gguf.tensors.push_back({"rope_freqs.weight", {1}, 0, Bytes(1.0f), {}});
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("rope_freqs.weight"));
}

TEST(GgufModel, VocabularySizesMustAgree) {
  EXPECT_THAT(RefusalWith("llama.vocab_size", 4u), HasSubstr("llama.vocab_size"));
  GgufWriter gguf = TinyGguf();
  gguf.Texts("tokenizer.ggml.tokens", {"a", "b"});
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), AllOf(HasSubstr("2 entries"), HasSubstr("3 rows")));
  for (const char* key : {"tokenizer.ggml.token_type", "tokenizer.ggml.scores"}) {
    gguf = TinyGguf();
    gguf.Int32s(key, {1, 1});
    EXPECT_THAT(ErrorOf(OpenGguf(gguf)), AllOf(HasSubstr(key), HasSubstr("2 entries")));
  }
}

TEST(GgufModel, TokenizerFieldsOfTheWrongType) {
  for (const char* key :
       {"tokenizer.ggml.tokens", "tokenizer.ggml.merges", "tokenizer.ggml.token_type",
        "tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template",
        "tokenizer.ggml.add_bos_token", "tokenizer.ggml.add_space_prefix"}) {
    EXPECT_THAT(RefusalWith(key, 1u), HasSubstr(key)) << key;
  }
  GgufWriter gguf = TinyGguf();
  gguf.Texts("tokenizer.ggml.token_type", {"1", "1", "1"});
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("array of string, not of integers"));
  gguf = TinyGguf();
  gguf.Int32s("tokenizer.ggml.token_type", {1, 9, 1});
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("token_type[1] is 9"));
  gguf = TinyGguf();
  gguf.Put("tokenizer.ggml.add_bos_token", 7, Bytes(uint8_t{2}));
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("bool 2"));
  gguf = TinyGguf();
  gguf.Remove("tokenizer.ggml.merges");
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("tokenizer.ggml.merges"));
}

TEST(GgufModel, SpecialIdsMustExist) {
  EXPECT_THAT(RefusalWith("tokenizer.ggml.eos_token_id", 3u),
              AllOf(HasSubstr("eos_token_id"), HasSubstr("is 3, must be 0 to 2")));
  EXPECT_THAT(RefusalWith("tokenizer.ggml.bos_token_id", 3u), HasSubstr("bos_token_id"));
  GgufWriter gguf = TinyGguf();
  gguf.Uint32("tokenizer.ggml.eot_token_id", 1);
  EXPECT_EQ((*OpenGguf(gguf))->config().eos_ids, (std::vector<uint32_t>{2, 1}));
}

TEST(GgufModel, NoTokenizerIsFine) {
  GgufWriter gguf = TinyGguf();
  for (const char* key : {"tokens", "merges", "token_type", "pre"}) {
    gguf.Remove(std::string("tokenizer.ggml.") + key);
  }
  gguf.Text("tokenizer.ggml.model", "none");
  auto checkpoint = OpenGguf(gguf);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->tokenizer(), nullptr);
}

TEST(GgufModel, OptionalTensorsAreDetected) {
  GgufWriter gguf = TinyGguf();
  gguf.tensors.push_back({"output.weight", {4, 3}, 0, std::string(48, '\0'), {}});
  EXPECT_FALSE((*OpenGguf(gguf))->config().tied_embeddings);
  gguf.tensors.push_back({"blk.0.ffn_up.bias", {6}, 0, std::string(24, '\0'), {}});
  EXPECT_THAT(ErrorOf(OpenGguf(gguf)), HasSubstr("mlp.gate_proj.bias"));
  gguf.tensors.push_back({"blk.0.ffn_gate.bias", {6}, 0, std::string(24, '\0'), {}});
  gguf.tensors.push_back({"blk.0.ffn_down.bias", {4}, 0, std::string(16, '\0'), {}});
  auto checkpoint = OpenGguf(gguf);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->config().mlp_bias);
  EXPECT_FALSE((*checkpoint)->config().attention_bias);
}

}  // namespace
}  // namespace kvern
