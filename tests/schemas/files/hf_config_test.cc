// config.json: what is read, and what is refused under which name.
#include "schemas/files/hf_config.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schemas/files/json.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> Parse(const std::string& text) {
  return ParseHfConfig(text, std::nullopt, "mem/config.json");
}

std::string RefusalWith(const std::string& field, const std::string& value) {
  return ErrorOf(Parse(TinyConfig(field, value)));
}

constexpr char kLlama3[] = R"("factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,)"
                           R"("original_max_position_embeddings": 32)";

TEST(HfConfig, ReadsTheTinyModel) {
  auto config = Parse(TinyConfig());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->vocab_size, 3u);
  EXPECT_EQ(config->hidden_size, 4u);
  EXPECT_EQ(config->intermediate_size, 6u);
  EXPECT_EQ(config->num_layers, 1u);
  EXPECT_EQ(config->num_heads, 2u);
  EXPECT_EQ(config->num_kv_heads, 1u);
  EXPECT_EQ(config->head_dim, 2u);
  EXPECT_EQ(config->max_seq_len, 64u);
  EXPECT_EQ(config->rms_norm_eps, 1e-5f);
  EXPECT_EQ(config->rope.theta, 5000.0);
  EXPECT_FALSE(config->rope.llama3.has_value());
  EXPECT_TRUE(config->tied_embeddings);
  EXPECT_EQ(config->eos_ids, std::vector<uint32_t>{2});
}

TEST(HfConfig, Defaults) {
  auto config = Parse(TinyConfig("num_key_value_heads", ""));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 2u);
  EXPECT_EQ(Parse(TinyConfig("rope_theta", ""))->rope.theta, 10000.0);
  EXPECT_EQ(Parse(TinyConfig("rms_norm_eps", "null"))->rms_norm_eps, 1e-6f);
  EXPECT_FALSE(Parse(TinyConfig("tie_word_embeddings", ""))->tied_embeddings);
  EXPECT_EQ(Parse(TinyConfig("head_dim", "6"))->head_dim, 6u);
  EXPECT_TRUE(Parse(TinyConfig("eos_token_id", "null"))->eos_ids.empty());
  EXPECT_EQ(Parse(TinyConfig("bos_token_id", "1"))->bos_id, 1u);
}

TEST(HfConfig, IntegersOutOfRangeAreNamed) {
  for (const char* field :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings"}) {
    for (const char* value : {"0", "-1", "1000000000", "18446744073709551615", "1e18", "2.0",
                              "\"4\"", "[4]", "{}", "true"}) {
      EXPECT_THAT(RefusalWith(field, value), AllOf(HasSubstr(field), HasSubstr("is ")))
          << field << " " << value;
    }
    EXPECT_THAT(RefusalWith(field, "-1"), HasSubstr("is -1"));
    EXPECT_THAT(RefusalWith(field, "0"), HasSubstr("is 0"));
  }
}

TEST(HfConfig, MissingFieldsAreNamed) {
  for (const char* field : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                            "num_attention_heads", "max_position_embeddings"}) {
    EXPECT_THAT(RefusalWith(field, ""), AllOf(HasSubstr(field), HasSubstr("missing")));
  }
}

TEST(HfConfig, FloatsMustBeFiniteAndSane) {
  for (const char* field : {"rope_theta", "rms_norm_eps"}) {
    for (const char* value :
         {"0", "-1.0", "1e300", "\"1\"", "NaN", "Infinity", "-Infinity", "1e400"}) {
      EXPECT_THAT(RefusalWith(field, value), HasSubstr(field)) << value;
    }
  }
}

TEST(HfConfig, HeadsMustDivide) {
  EXPECT_THAT(RefusalWith("num_key_value_heads", "3"), HasSubstr("not a multiple"));
  EXPECT_THAT(RefusalWith("num_attention_heads", "3"), HasSubstr("not a multiple"));
  EXPECT_THAT(RefusalWith("head_dim", "3"), HasSubstr("must be even"));
}

TEST(HfConfig, OtherModelsAreRefusedByName) {
  EXPECT_THAT(RefusalWith("model_type", "\"mistral\""), HasSubstr("'mistral'"));
  EXPECT_THAT(RefusalWith("architectures", "[\"MixtralForCausalLM\"]"), HasSubstr("Mixtral"));
  EXPECT_THAT(RefusalWith("architectures", "[]"), HasSubstr("architectures"));
  EXPECT_THAT(RefusalWith("hidden_act", "\"gelu\""), HasSubstr("'gelu'"));
  EXPECT_THAT(RefusalWith("quantization_config", "{\"quant_method\":\"awq\"}"), HasSubstr("awq"));
  EXPECT_THAT(RefusalWith("sliding_window", "16"), HasSubstr("sliding_window is 16"));
  EXPECT_THAT(RefusalWith("partial_rotary_factor", "0.5"), HasSubstr("partial_rotary_factor"));
}

TEST(HfConfig, CodeInAModelIsIgnored) {
  EXPECT_TRUE(Parse(TinyConfig("auto_map", "{\"AutoModel\":\"evil.py--Evil\"}")).ok());
}

TEST(HfConfig, Llama3RopeInBothSpellings) {
  for (const std::string& text :
       {TinyConfig("rope_scaling", absl::StrCat("{\"rope_type\":\"llama3\",", kLlama3, "}")),
        TinyConfig("rope_scaling", absl::StrCat("{\"type\":\"llama3\",", kLlama3, "}")),
        TinyConfig(
            "rope_parameters",
            absl::StrCat("{\"rope_theta\":8000.0,\"rope_type\":\"llama3\",", kLlama3, "}"))}) {
    auto config = Parse(text);
    ASSERT_TRUE(config.ok()) << config.status();
    ASSERT_TRUE(config->rope.llama3.has_value()) << text;
    EXPECT_EQ(config->rope.llama3->factor, 8.0);
    EXPECT_EQ(config->rope.llama3->low_freq_factor, 1.0);
    EXPECT_EQ(config->rope.llama3->high_freq_factor, 4.0);
    EXPECT_EQ(config->rope.llama3->original_max_seq_len, 32u);
    bool version5 = text.find("rope_parameters") != std::string::npos;
    EXPECT_EQ(config->rope.theta, version5 ? 8000.0 : 5000.0);
  }
}

TEST(HfConfig, RopeThatIsNotSupported) {
  EXPECT_THAT(RefusalWith("rope_scaling", "{\"type\":\"linear\",\"factor\":2.0}"),
              AllOf(HasSubstr("rope_scaling.type"), HasSubstr("'linear'")));
  EXPECT_THAT(RefusalWith("rope_parameters", "{\"rope_type\":\"yarn\"}"),
              AllOf(HasSubstr("rope_parameters.rope_type"), HasSubstr("'yarn'")));
  EXPECT_THAT(RefusalWith("rope_scaling", "{\"type\":\"llama3\"}"),
              HasSubstr("rope_scaling.factor is missing"));
  EXPECT_THAT(RefusalWith("rope_scaling", "3"), HasSubstr("rope_scaling is 3"));
  for (const char* bad :
       {"\"factor\": 0.5", "\"low_freq_factor\": 9.0", "\"original_max_position_embeddings\": 0"}) {
    std::string scaling = absl::StrCat("{\"type\":\"llama3\",", kLlama3, "}");
    std::string field(bad, static_cast<size_t>(std::strchr(bad, ':') - bad));
    size_t at = scaling.find(field);
    scaling.replace(at, scaling.find_first_of(",}", at) - at, bad);
    EXPECT_NE(RefusalWith("rope_scaling", scaling), "opened") << bad;
  }
}

TEST(HfConfig, SpecialIdsMustExist) {
  EXPECT_EQ(Parse(TinyConfig("eos_token_id", "[2, 0, 2]"))->eos_ids, (std::vector<uint32_t>{2, 0}));
  for (const char* value : {"3", "-1", "[0, 3]", "[[0]]", "\"2\"", "1.5"}) {
    EXPECT_THAT(RefusalWith("eos_token_id", value), HasSubstr("eos_token_id")) << value;
    EXPECT_THAT(RefusalWith("bos_token_id", value), HasSubstr("bos_token_id")) << value;
  }
}

TEST(Json, LimitsAndSyntax) {
  JsonLimits limits;
  limits.max_bytes = 100;
  limits.max_depth = 3;
  limits.max_values = 5;
  limits.max_string_bytes = 4;
  auto refusal = [&limits](const std::string& text) {
    return ErrorOf(ParseJson(text, "mem.json", limits));
  };
  EXPECT_EQ(refusal("[[[1]],\"abcd\"]"), "opened");
  EXPECT_THAT(refusal(std::string(101, ' ')), HasSubstr("101 bytes of JSON, the limit is 100"));
  EXPECT_THAT(refusal("[[[[1]]]]"), HasSubstr("nesting beyond the limit of 3"));
  EXPECT_THAT(refusal("[1,2,3,4,5,6]"), HasSubstr("values beyond the limit of 5"));
  EXPECT_THAT(refusal("\"abcde\""), HasSubstr("string beyond the limit of 4"));
  EXPECT_THAT(refusal(std::string(80, '1')), HasSubstr("token beyond the limit of 64"));
  EXPECT_THAT(refusal("{\"a\":1,\"a\":2}"), AllOf(HasSubstr("'a'"), HasSubstr("repeats")));
  EXPECT_THAT(refusal("{\"a\":tru}"), AllOf(HasSubstr("after key 'a'"), HasSubstr("tru")));
  for (const char* text :
       {"", " ", "{", "[", "\"", "\"\\", "{\"a\"", "{\"a\":}", "[1,]", "1 2", "nul", "+1", "01",
        "'a'", "\"\xff\"", "\"\\ud800\"", "{1:2}", "]", "[}"}) {
    EXPECT_NE(refusal(text), "opened") << text;
  }
}

TEST(Json, BuildsTheTreeThatWasWritten) {
  const char* text = R"({"a":[1,-2,3.5,null,true,"x"],"b":{"c":{"d":[]}},"e":{}})";
  auto tree = ParseJson(text, "mem.json");
  ASSERT_TRUE(tree.ok()) << tree.status();
  EXPECT_EQ(tree->dump(), text);
}

}  // namespace
}  // namespace kvern
