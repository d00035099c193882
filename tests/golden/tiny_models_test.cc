// Tiny random models against a float32 reference, on one, two and three ranks.
#include <gtest/gtest.h>

#include "tests/golden/model_group.h"

namespace kvern {
namespace {

constexpr float kTolerance = 1e-3f;  // tests/golden/README.md; the reference itself is within 1e-4

void RunCases(const std::string& path, const std::vector<GoldenCase>& cases, int world) {
  GroupOptions options;
  options.world = world;
  auto group = ModelGroup::Load(path, options);
  ASSERT_NE(group, nullptr);
  std::vector<std::vector<uint32_t>> prompts;
  for (const GoldenCase& golden : cases) prompts.push_back(golden.ids);
  RunOptions run;
  run.steps = 32;
  auto generated = group->Generate(prompts, run);
  ASSERT_EQ(generated.size(), cases.size());
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_EQ(generated[i].tokens.size(), 32u);
    ExpectFollowsReference(cases[i], generated[i], kTolerance);
  }
}

struct TinyModel {
  std::string name;
  int world;
};

class TinyModelTest : public testing::TestWithParam<TinyModel> {};

TEST_P(TinyModelTest, FollowsTheReference) {
  const std::string& name = GetParam().name;
  RunCases("tests/golden/tiny/" + name, TinyCases(name), GetParam().world);
}

std::string TinyName(const testing::TestParamInfo<TinyModel>& info) {
  return info.param.name + "_tp" + std::to_string(info.param.world);
}

// As many ranks as there are KV heads, up to three.
INSTANTIATE_TEST_SUITE_P(
    Safetensors, TinyModelTest,
    testing::Values(TinyModel{"llama_gqa", 1}, TinyModel{"llama_gqa", 2}, TinyModel{"llama_mha", 1},
                    TinyModel{"llama_mha", 2}, TinyModel{"llama_mha", 3},
                    TinyModel{"llama_9h_3kv", 1}, TinyModel{"llama_9h_3kv", 2},
                    TinyModel{"llama_9h_3kv", 3}, TinyModel{"llama_head_dim32", 1},
                    TinyModel{"llama_sharded", 1}, TinyModel{"llama_sharded", 2},
                    TinyModel{"llama_attn_mlp_bias", 1}, TinyModel{"llama_attn_mlp_bias", 2},
                    TinyModel{"llama3_rope", 1}, TinyModel{"llama3_rope", 2},
                    TinyModel{"llama3_rope_v5config", 1}, TinyModel{"llama3_rope_v5config", 2}),
    TinyName);

class TinyGgufTest : public testing::TestWithParam<TinyModel> {};

TEST_P(TinyGgufTest, FollowsTheReference) {
  std::string file = "tiny-" + GetParam().name + ".gguf";
  RunCases("tests/golden/tiny/llama_gqa_gguf/" + file, GgufCases(file), GetParam().world);
}

INSTANTIATE_TEST_SUITE_P(Types, TinyGgufTest,
                         testing::Values(TinyModel{"f32", 1}, TinyModel{"f32", 2},
                                         TinyModel{"f16", 1}, TinyModel{"f16", 2},
                                         TinyModel{"bf16", 1}, TinyModel{"bf16", 2},
                                         TinyModel{"q8_0", 1}, TinyModel{"q8_0", 2},
                                         TinyModel{"q4_0", 1}, TinyModel{"q4_0", 2},
                                         TinyModel{"q4_1", 1}, TinyModel{"q4_1", 2}),
                         TinyName);

}  // namespace
}  // namespace kvern
