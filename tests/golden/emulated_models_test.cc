// The GPU path on emulated devices: tiny models against the float32 reference, itself in other
// batches, recorded steps against computed ones, and what happens when a rank is lost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "cluster/base/check.h"
#include "cluster/base/rng.h"
#include "tests/golden/model_group.h"
#include "tests/golden/rounding_decoder.h"
#include "tests/golden/tested_gpu.h"

namespace kvern {
namespace {

// KL(p || q) in nats, of what softmax makes of both.
double Divergence(const std::vector<float>& p, const std::vector<float>& q) {
  EXPECT_EQ(p.size(), q.size());
  const auto log_sum = [](const std::vector<float>& values) {
    double sum = 0;
    for (float value : values) sum += std::exp(static_cast<double>(value));
    return std::log(sum);
  };
  const double p_sum = log_sum(p);
  const double q_sum = log_sum(q);
  double divergence = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double log_p = static_cast<double>(p[i]) - p_sum;
    divergence += std::exp(log_p) * (log_p - static_cast<double>(q[i]) + q_sum);
  }
  return divergence;
}

GroupOptions Emulated(int world) {
  GroupOptions options;
  options.world = world;
  options.gpu = &TestedGpu();
  options.kv = DType::kBf16;
  options.max_tokens = 128;
  return options;
}

struct TinyModel {
  std::string name;
  int world;
  // What another implementation loses with weights, activations and KV in bf16: its largest KL over
  // these prompts.
  double bf16_kl;
};

std::string TinyName(const testing::TestParamInfo<TinyModel>& info) {
  return info.param.name + "_tp" + std::to_string(info.param.world);
}

void ExpectNearReference(const std::string& path, const std::vector<GoldenCase>& cases,
                         const TinyModel& model) {
  auto group = ModelGroup::Load(path, Emulated(model.world));
  ASSERT_NE(group, nullptr);
  std::vector<std::vector<uint32_t>> prompts;
  for (const GoldenCase& golden : cases) prompts.push_back(golden.ids);
  RunOptions run;
  run.steps = 4;
  const auto generated = group->Generate(prompts, run);
  double worst = 0;
  for (size_t i = 0; i < cases.size(); ++i) {
    ASSERT_EQ(generated[i].tokens.size(), 4u);
    const double kl = Divergence(cases[i].last_logits, generated[i].logits[0]);
    EXPECT_LE(kl, 2 * model.bf16_kl) << cases[i].name;  // NaN is not
    worst = std::max(worst, kl);
  }
  testing::Test::RecordProperty("kl", std::to_string(worst));
}

class EmulatedModelTest : public testing::TestWithParam<TinyModel> {};

TEST_P(EmulatedModelTest, IsAsNearToTheReferenceAsBf16Allows) {
  const TinyModel& model = GetParam();
  ExpectNearReference("tests/golden/tiny/" + model.name, TinyCases(model.name), model);
}

// The hardest prompt is llama_attn_mlp_bias's of 64 tokens: at its end a head of layer 0 divides
// itself between two keys, 0.50 to 0.46, whose scores of 13.25 and 13.15 move by up to 0.1 when q
// and k are rounded both before and after they are rotated. That costs 0.043; rounded once, 0.0075.
INSTANTIATE_TEST_SUITE_P(
    Safetensors, EmulatedModelTest,
    testing::Values(TinyModel{"llama_gqa", 1, 0.0280}, TinyModel{"llama_gqa", 2, 0.0280},
                    TinyModel{"llama_mha", 1, 0.0036}, TinyModel{"llama_mha", 2, 0.0036},
                    TinyModel{"llama_mha", 4, 0.0036}, TinyModel{"llama_9h_3kv", 1, 0.0570},
                    TinyModel{"llama_9h_3kv", 2, 0.0570}, TinyModel{"llama_9h_3kv", 3, 0.0570},
                    TinyModel{"llama_head_dim32", 1, 0.0149}, TinyModel{"llama_sharded", 1, 0.0101},
                    TinyModel{"llama_sharded", 2, 0.0101},
                    TinyModel{"llama_attn_mlp_bias", 1, 0.0075},
                    TinyModel{"llama_attn_mlp_bias", 2, 0.0075},
                    TinyModel{"llama3_rope", 1, 0.2145}, TinyModel{"llama3_rope", 2, 0.2145},
                    TinyModel{"llama3_rope_v5config", 1, 0.0182},
                    TinyModel{"llama3_rope_v5config", 2, 0.0182}),
    TinyName);

class EmulatedGgufTest : public testing::TestWithParam<TinyModel> {};

TEST_P(EmulatedGgufTest, WeightsOfEveryTypeAreRoundedToBf16) {
  const std::string file = "tiny-" + GetParam().name + ".gguf";
  ExpectNearReference("tests/golden/tiny/llama_gqa_gguf/" + file, GgufCases(file), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Types, EmulatedGgufTest,
                         testing::Values(TinyModel{"f32", 1, 0.0280}, TinyModel{"f32", 2, 0.0280},
                                         TinyModel{"f16", 1, 0.0280}, TinyModel{"f16", 2, 0.0280},
                                         TinyModel{"bf16", 1, 0.0280}, TinyModel{"bf16", 2, 0.0280},
                                         TinyModel{"q8_0", 1, 0.0280}, TinyModel{"q8_0", 2, 0.0280},
                                         TinyModel{"q4_0", 1, 0.0280}, TinyModel{"q4_0", 2, 0.0280},
                                         TinyModel{"q4_1", 1, 0.0280},
                                         TinyModel{"q4_1", 2, 0.0280}),
                         TinyName);

// What the rounding decoder says after each of the model's cases. Kept: it takes longer than the
// emulated device, and is the same for any number of ranks.
const std::vector<std::vector<float>>& RoundedLogits(const std::string& model) {
  static auto* const kept = new std::map<std::string, std::vector<std::vector<float>>>;
  auto [entry, is_new] = kept->try_emplace(model);
  if (!is_new) return entry->second;
  auto checkpoint = Checkpoint::Open("tests/golden/tiny/" + model);
  KVERN_CHECK(checkpoint.ok()) << checkpoint.status();
  RoundingDecoder decoder(**checkpoint);
  for (const GoldenCase& golden : TinyCases(model)) {
    entry->second.push_back(decoder.LastLogits(golden.ids));
  }
  return entry->second;
}

constexpr float kFloat32Error = 1e-5f;  // of a logit

float Farthest(const std::vector<float>& a, const std::vector<float>& b) {
  EXPECT_EQ(a.size(), b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(a[i] - b[i]);
    worst = difference <= worst ? worst : difference;  // NaN stays
  }
  return worst;
}

// Whether `logits` are what the decoder says when one of the values at the edge between two bf16
// values goes to the other one.
bool IsOneEdgeAway(const std::string& model, const std::vector<uint32_t>& ids,
                   const std::vector<float>& logits) {
  auto checkpoint = Checkpoint::Open("tests/golden/tiny/" + model);
  KVERN_CHECK(checkpoint.ok()) << checkpoint.status();
  RoundingDecoder decoder(**checkpoint);
  decoder.LastLogits(ids);
  const int count = decoder.values_at_edges();
  for (int tipped = 0; tipped < count; ++tipped) {
    if (Farthest(decoder.LastLogits(ids, tipped), logits) <= kFloat32Error) return true;
  }
  return false;
}

// How far logits, and what softmax makes of them, may be from the rounding decoder's.
struct Bounds {
  float logit;
  double divergence;
};

Bounds RoundingBounds(size_t tokens) {
  // The longer a prompt, the more values lie so near to an edge that the order of a sum tips them
  // over. Up to 17 tokens that costs up to 0.056 and 7.5e-5; 33 tokens, 0.081 and 1.8e-4; 64 and
  // 100, 0.27 and 1.7e-3. The sums' orders are the emulated device's: it says the same every time.
  if (kEmulated && tokens <= 17) return {0.12f, 2e-4};
  if (kEmulated && tokens <= 33) return {0.17f, 4e-4};
  if (kEmulated) return {0.3f, 2.5e-3};
  // A real GPU adds in orders of its own, its tensor cores align products before they add them, its
  // exponentials are approximate. Noise of one unit of float32 in the decoder's own sums tips some
  // value over in most of these models, be the prompt ever so short. Noise of 16 units moves logits
  // by up to 0.46 and divergences to 0.0101 (three seeds of each model and prompt): twice that.
  return {1.0f, 0.02};
}

class RoundingTest : public testing::TestWithParam<TinyModel> {};

TEST_P(RoundingTest, AgreesWithADecoderThatRoundsAtTheSamePoints) {
  const TinyModel& model = GetParam();
  auto group = ModelGroup::Load("tests/golden/tiny/" + model.name, Emulated(model.world));
  ASSERT_NE(group, nullptr);
  const std::vector<GoldenCase> cases = TinyCases(model.name);
  for (size_t c = 0; c < cases.size(); ++c) {
    const GoldenCase& golden = cases[c];
    RunOptions run;
    run.steps = 1;
    const auto generated = group->Generate({golden.ids}, run);
    const std::vector<float>& expected = RoundedLogits(model.name)[c];
    const std::vector<float>& logits = generated[0].logits[0];
    const float worst = Farthest(expected, logits);
    // Few sums: the same but for float32, which may tip over a value.
    if (golden.ids.size() <= 2 && !(worst <= kFloat32Error) && kEmulated) {
      EXPECT_TRUE(IsOneEdgeAway(model.name, golden.ids, logits)) << golden.name << ": " << worst;
    }
    const Bounds bounds = RoundingBounds(golden.ids.size());
    EXPECT_LE(worst, bounds.logit) << golden.name;
    EXPECT_LE(Divergence(expected, logits), bounds.divergence) << golden.name;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, RoundingTest,
    testing::Values(TinyModel{"llama_gqa", 1, 0}, TinyModel{"llama_gqa", 2, 0},
                    TinyModel{"llama_mha", 1, 0}, TinyModel{"llama_mha", 2, 0},
                    TinyModel{"llama_mha", 4, 0}, TinyModel{"llama_9h_3kv", 1, 0},
                    TinyModel{"llama_9h_3kv", 2, 0}, TinyModel{"llama_9h_3kv", 3, 0},
                    TinyModel{"llama_head_dim32", 1, 0}, TinyModel{"llama_sharded", 1, 0},
                    TinyModel{"llama_sharded", 2, 0}, TinyModel{"llama_attn_mlp_bias", 1, 0},
                    TinyModel{"llama_attn_mlp_bias", 2, 0}, TinyModel{"llama3_rope", 1, 0},
                    TinyModel{"llama3_rope", 2, 0}, TinyModel{"llama3_rope_v5config", 1, 0},
                    TinyModel{"llama3_rope_v5config", 2, 0}),
    TinyName);

std::vector<uint32_t> RandomPrompt(Rng& rng, size_t length, uint32_t vocab_size) {
  std::vector<uint32_t> prompt;
  for (size_t i = 0; i < length; ++i) {
    prompt.push_back(static_cast<uint32_t>(rng.Below(vocab_size)));
  }
  return prompt;
}

bool SameBytes(const Generated& a, const Generated& b) {
  if (a.tokens != b.tokens || a.logits.size() != b.logits.size()) return false;
  for (size_t draw = 0; draw < a.logits.size(); ++draw) {
    if (std::memcmp(a.logits[draw].data(), b.logits[draw].data(),
                    a.logits[draw].size() * sizeof(float)) != 0) {
      return false;
    }
  }
  return true;
}

// What a request of 300 tokens (more than one split of attention) says alone, in chunks, resumed,
// and among others; true when all of it is the same.
bool SameInEveryBatch(const std::string& model, const GroupOptions& options) {
  auto group = ModelGroup::Load("tests/golden/tiny/" + model, options);
  if (group == nullptr) return false;
  Rng rng(20261130);
  const auto request = RandomPrompt(rng, 300, group->config().vocab_size);
  RunOptions run;
  run.chunk = 128;
  run.steps = 4;
  run.kept_logits = 4;
  const Generated alone = group->Generate({request}, run)[0];
  RunOptions chunked = run;
  chunked.chunk = 7;
  bool same = SameBytes(alone, group->Generate({request}, chunked)[0]);
  // Resumed after two tokens, as when its group was lost: they have become part of the prompt.
  auto resumed_prompt = request;
  resumed_prompt.insert(resumed_prompt.end(), alone.tokens.begin(), alone.tokens.begin() + 2);
  RunOptions rest = run;
  rest.steps = 2;
  rest.kept_logits = 2;
  Generated last_two;
  last_two.tokens.assign(alone.tokens.begin() + 2, alone.tokens.end());
  last_two.logits.assign(alone.logits.begin() + 2, alone.logits.end());
  same = SameBytes(last_two, group->Generate({resumed_prompt}, rest)[0]) && same;
  std::vector<std::vector<uint32_t>> crowd;
  for (int i = 0; i < 9; ++i) {
    crowd.push_back(RandomPrompt(rng, 1 + rng.Below(40), group->config().vocab_size));
  }
  crowd.insert(crowd.begin() + 4, request);
  for (int64_t chunk : {30, 128}) {
    chunked.chunk = chunk;
    same = SameBytes(alone, group->Generate(crowd, chunked)[4]) && same;
  }
  return same;
}

class EmulatedInvarianceTest : public testing::TestWithParam<TinyModel> {};

TEST_P(EmulatedInvarianceTest, SameBytesInEveryBatch) {
  for (DType kv : {DType::kBf16, DType::kF32}) {
    GroupOptions options = Emulated(GetParam().world);
    options.batch_invariant = true;
    options.kv = kv;
    EXPECT_TRUE(SameInEveryBatch(GetParam().name, options));
    if (GetParam().world > 1) return;  // the cache is of each rank alone
  }
}

// Uneven heads on each number of ranks; biases, scaled frequencies, head_dim 32, four ranks.
INSTANTIATE_TEST_SUITE_P(
    Groups, EmulatedInvarianceTest,
    testing::Values(TinyModel{"llama_9h_3kv", 1, 0}, TinyModel{"llama_9h_3kv", 2, 0},
                    TinyModel{"llama_9h_3kv", 3, 0}, TinyModel{"llama_attn_mlp_bias", 2, 0},
                    TinyModel{"llama3_rope", 1, 0}, TinyModel{"llama_head_dim32", 1, 0},
                    TinyModel{"llama_mha", 4, 0}),
    TinyName);

// The test above can fail: without the option the products' order follows the batch. (A real GPU
// may happen to choose one order for all these sizes.)
TEST(EmulatedVarianceTest, OtherBytesWithoutTheOption) {
  EXPECT_FALSE(SameInEveryBatch("llama_9h_3kv", Emulated(1)));
  EXPECT_FALSE(SameInEveryBatch("llama_attn_mlp_bias", Emulated(2)));
}

class EmulatedGraphTest : public testing::TestWithParam<TinyModel> {};

// And so they do when one of the streams of each GPU, the one that computes (0) or the one that
// copies (1), works as late as it may: then it is always too late where a wait is missing.
TEST_P(EmulatedGraphTest, RecordedStepsGiveTheBytesOfComputedOnes) {
  struct Variant {
    bool graphs;
    int late;
  };
  const int world = GetParam().world;
  std::vector<std::vector<Generated>> results;
  for (const Variant& variant : {Variant{false, -1}, {true, -1}, {true, 0}, {true, 1}}) {
    GroupOptions options = Emulated(world);
    options.batch_invariant = true;  // padding changes the shape of products
    options.graphs = variant.graphs;
    for (int gpu = 0; gpu < world; ++gpu) MakeStreamLate(gpu, variant.late);
    auto group = ModelGroup::Load("tests/golden/tiny/" + GetParam().name, options);
    ASSERT_NE(group, nullptr);
    Rng rng(7);
    std::vector<std::vector<uint32_t>> prompts;
    for (size_t length : {3u, 250u, 17u}) {
      prompts.push_back(RandomPrompt(rng, length, group->config().vocab_size));
    }
    RunOptions run;
    run.chunk = 128;
    run.steps = 12;  // the long one passes from one split to two while steps are replayed
    run.kept_logits = 12;
    results.push_back(group->Generate(prompts, run));
  }
  for (size_t variant = 1; variant < results.size(); ++variant) {
    for (size_t i = 0; i < results[0].size(); ++i) {
      EXPECT_TRUE(SameBytes(results[0][i], results[variant][i]))
          << "variant " << variant << ", prompt " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Groups, EmulatedGraphTest,
                         testing::Values(TinyModel{"llama_gqa", 1, 0}, TinyModel{"llama_gqa", 2, 0},
                                         TinyModel{"llama_attn_mlp_bias", 2, 0}),
                         TinyName);

}  // namespace
}  // namespace kvern
