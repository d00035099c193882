// The sampler on one, two and three ranks: golden distributions, the same draws however the
// vocabulary is split, and log-probabilities.
#include "worker/model/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "cluster/base/rng.h"
#include "worker/comm/local.h"
#include "worker/device/cpu/cpu_device.h"

namespace kvern {
namespace {

using nlohmann::json;

struct Case {
  std::string name;
  std::vector<float> logits;
  ResolvedSampling params;
  std::vector<uint32_t> tokens;  // prompt, then output
  uint32_t prompt_tokens = 0;
  uint32_t argmax = 0;
  std::map<uint32_t, double> probabilities;
};

Case CaseOf(const json& item) {
  Case result;
  result.name = item["name"];
  result.logits = item["logits"].get<std::vector<float>>();
  const json& p = item["params"];
  result.params.temperature = p.value("temperature", 1.0f);
  result.params.top_k = static_cast<uint32_t>(std::max(0, p.value("top_k", 0)));
  result.params.top_p = p.value("top_p", 1.0f);
  result.params.min_p = p.value("min_p", 0.0f);
  result.params.repetition_penalty = p.value("repetition_penalty", 1.0f);
  result.params.presence_penalty = p.value("presence_penalty", 0.0f);
  result.params.frequency_penalty = p.value("frequency_penalty", 0.0f);
  const json biases = p.value("logit_bias", json::object());
  for (auto it = biases.begin(); it != biases.end(); ++it) {
    auto id = static_cast<uint32_t>(std::stoul(it.key()));
    result.params.logit_bias.emplace_back(id, it.value().get<float>());
  }
  result.tokens = p.value("prompt", std::vector<uint32_t>());
  result.prompt_tokens = static_cast<uint32_t>(result.tokens.size());
  for (uint32_t id : p.value("output", std::vector<uint32_t>())) result.tokens.push_back(id);
  result.argmax = item["argmax"];
  bool order_matters = item["order_sensitive"];
  for (const json& pair : item[order_matters ? "probs_vllm_v1" : "probs"]) {
    double probability = pair[1];
    if (probability >= 1e-12) result.probabilities[pair[0].get<uint32_t>()] = probability;
  }
  return result;
}

std::vector<Case> GoldenCases() {
  std::vector<Case> cases;
  std::ifstream file("tests/golden/sampling/sampling.jsonl");
  EXPECT_TRUE(file.is_open());
  for (std::string line; std::getline(file, line);) cases.push_back(CaseOf(json::parse(line)));
  EXPECT_EQ(cases.size(), 66u);
  return cases;
}

std::vector<ShardRange> Split(uint32_t vocab, int world) {
  std::vector<ShardRange> shards;
  auto ranks = static_cast<uint32_t>(world);
  for (uint32_t r = 0; r < ranks; ++r) {
    // Uneven on purpose.
    uint32_t begin = r == 0 ? 0 : shards.back().end;
    uint32_t end = r + 1 == ranks ? vocab : std::max(begin + 1, vocab * (r + 1) / (ranks + 1));
    shards.push_back({begin, end});
  }
  return shards;
}

// The sampler's answers for `rows` whose logits are all `logits`; every rank must give the same.
std::vector<SampledToken> SampleOn(int world, const std::vector<float>& logits,
                                   const std::vector<SampleRow>& rows) {
  auto vocab = static_cast<uint32_t>(logits.size());
  auto comms = NewLocalGroup(world);
  auto shards = Split(vocab, world);
  std::vector<std::vector<SampledToken>> results(static_cast<size_t>(world));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < results.size(); ++r) {
    threads.emplace_back([&, r] {
      auto device = NewCpuDevice({.threads = 1});
      ASSERT_TRUE(device.ok()) << device.status();
      Sampler sampler(device->get(), comms[r].get(), shards[r], vocab);
      int64_t columns = shards[r].size();
      std::vector<float> mine;
      for (size_t i = 0; i < rows.size(); ++i) {
        mine.insert(mine.end(), logits.begin() + shards[r].begin, logits.begin() + shards[r].end);
      }
      auto count = static_cast<int64_t>(rows.size());
      auto samples = sampler.Sample({mine.data(), DType::kF32, count, columns, columns}, rows);
      ASSERT_TRUE(samples.ok()) << samples.status();
      results[r] = *std::move(samples);
    });
  }
  for (auto& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, results[0]);
  return results[0];
}

SampleRow RowOf(const Case& golden, uint32_t position) {
  SampleRow row;
  row.params = &golden.params;
  row.position = position;
  row.tokens = golden.tokens;
  row.prompt_tokens = golden.prompt_tokens;
  return row;
}

// Edits and filters as the sampler chains them, with all tokens known.
std::map<uint32_t, double> DistributionOf(const Case& golden, int world) {
  auto vocab = static_cast<uint32_t>(golden.logits.size());
  CandidateSet set;
  for (const ShardRange& shard : Split(vocab, world)) {
    std::vector<float> logits(golden.logits.begin() + shard.begin,
                              golden.logits.begin() + shard.end);
    LogitEditor editor(shard);
    LogitEdits edits;
    editor.Apply({&golden.params, 0, golden.tokens, golden.prompt_tokens, {}}, logits.data(),
                 edits);
    for (uint32_t c = 0; c < shard.size(); ++c) {
      set.tokens.push_back({logits[c], golden.logits[shard.begin + c], shard.begin + c});
      EXPECT_EQ(RawLogit(edits, c, logits[c]), golden.logits[shard.begin + c]);
    }
  }
  std::sort(set.tokens.begin(), set.tokens.end(), IsBetter);
  std::map<uint32_t, double> result;
  if (IsGreedy(golden.params)) {
    result[set.tokens[0].token_id] = 1;
    return result;
  }
  auto distribution = FilteredDistribution(set, golden.params, vocab);
  for (const TokenProbability& entry : distribution.value()) {
    if (entry.probability >= 1e-12) result[entry.token_id] = entry.probability;
  }
  return result;
}

class GoldenSamplingTest : public testing::TestWithParam<int> {};

TEST_P(GoldenSamplingTest, ProbabilitiesEqualTheReference) {
  for (const Case& golden : GoldenCases()) {
    std::map<uint32_t, double> mine = DistributionOf(golden, GetParam());
    EXPECT_EQ(mine.size(), golden.probabilities.size()) << golden.name;
    for (const auto& [id, probability] : golden.probabilities) {
      ASSERT_TRUE(mine.contains(id)) << golden.name << ": token " << id << " is missing";
      EXPECT_NEAR(mine[id], probability, 1e-6) << golden.name << ": token " << id;
    }
  }
}

TEST_P(GoldenSamplingTest, DrawsFollowTheReferenceAndNotTheSplit) {
  constexpr uint32_t kDraws = 600;
  for (const Case& golden : GoldenCases()) {
    std::vector<SampleRow> rows;
    for (uint32_t position = 0; position < kDraws; ++position) {
      rows.push_back(RowOf(golden, position));
    }
    std::vector<SampledToken> drawn = SampleOn(GetParam(), golden.logits, rows);
    if (GetParam() > 1) {
      EXPECT_EQ(drawn, SampleOn(1, golden.logits, rows)) << golden.name;
    }
    std::map<uint32_t, double> counts;
    for (const SampledToken& sample : drawn) ++counts[sample.token_id];
    if (IsGreedy(golden.params)) {
      EXPECT_EQ(counts[golden.argmax], kDraws) << golden.name;
    }
    for (const auto& [id, count] : counts) {
      ASSERT_TRUE(golden.probabilities.contains(id)) << golden.name << ": token " << id;
      double p = golden.probabilities.at(id);
      // Six standard deviations of a binomial count, and one draw for the rarest.
      double sigma = std::sqrt(kDraws * p * (1 - p));
      EXPECT_NEAR(count, kDraws * p, 6 * sigma + 1.5) << golden.name << ": token " << id;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, GoldenSamplingTest, testing::Values(1, 2, 3));

std::vector<float> FlatLogits(size_t count) {
  std::vector<float> logits;
  Rng rng(9);
  for (size_t i = 0; i < count; ++i) {
    logits.push_back(static_cast<float>(UnitInterval(rng.Next()) * 0.01));
  }
  return logits;
}

// Nearly equal tokens: 1,024 candidates of a shard are not enough for the nucleus, nor for top_k.
TEST(SamplerTest, GathersWholeRowsWhenCandidatesDoNotSuffice) {
  std::vector<float> logits = FlatLogits(10000);
  ResolvedSampling nucleus;
  nucleus.top_p = 0.9f;
  ResolvedSampling wide;
  wide.top_k = 5000;
  std::vector<SampleRow> rows(40);
  for (uint32_t i = 0; i < rows.size(); ++i) {
    rows[i].slot = i;
    rows[i].params = i % 2 == 0 ? &nucleus : &wide;
    rows[i].position = i;
  }
  auto one = SampleOn(1, logits, rows);
  EXPECT_EQ(one, SampleOn(2, logits, rows));
  EXPECT_EQ(one, SampleOn(3, logits, rows));
  std::vector<float> sorted = logits;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (uint32_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(one[i].slot, i);
    float drawn = logits[one[i].token_id];
    EXPECT_GE(drawn, i % 2 == 0 ? sorted[9100] : sorted[4999]);
  }
}

TEST(SamplerTest, LogprobsAreOfTheRawLogits) {
  std::vector<float> logits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};
  ResolvedSampling params;
  params.temperature = 0;
  params.logprobs = 3;
  params.logit_bias = {{4, 50.0f}};
  double sum = 0;
  for (float logit : logits) sum += std::exp(static_cast<double>(logit));
  std::vector<SampleRow> rows(1);
  rows[0].params = &params;
  for (int world : {1, 2, 3}) {
    auto sample = SampleOn(world, logits, rows)[0];
    EXPECT_EQ(sample.token_id, 4u);  // the bias decides the draw
    EXPECT_EQ(sample.logprob.token_id, 4u);
    EXPECT_NEAR(sample.logprob.logprob, -1.0 - std::log(sum), 1e-5);
    ASSERT_EQ(sample.logprob.top.size(), 3u);
    EXPECT_EQ(sample.logprob.top[0].first, 1u);  // ties to the lower id
    EXPECT_EQ(sample.logprob.top[1].first, 3u);
    EXPECT_EQ(sample.logprob.top[2].first, 2u);
    EXPECT_NEAR(sample.logprob.top[2].second, 2.0 - std::log(sum), 1e-5);
  }
  params.logprobs = 0;
  EXPECT_TRUE(SampleOn(2, logits, rows)[0].logprob.top.empty());
  params.logprobs = 20;  // more than there are
  EXPECT_EQ(SampleOn(2, logits, rows)[0].logprob.top.size(), 6u);
}

TEST(SamplerTest, MinTokensMasksEosAndStopIds) {
  std::vector<float> logits = {5.0f, 4.0f, 3.0f, 2.0f};
  ResolvedSampling params;
  params.temperature = 0;
  params.min_tokens = 2;
  params.stop_token_ids = {1};
  std::vector<uint32_t> eos = {0};
  std::vector<SampleRow> rows(3);
  for (uint32_t i = 0; i < 3; ++i) {
    rows[i].params = &params;
    rows[i].position = i;
    rows[i].eos_ids = eos;
  }
  for (int world : {1, 2}) {
    auto samples = SampleOn(world, logits, rows);
    EXPECT_EQ(samples[0].token_id, 2u);
    EXPECT_EQ(samples[1].token_id, 2u);
    EXPECT_EQ(samples[2].token_id, 0u);
  }
}

TEST(SamplerTest, BrokenLogitsStillGiveATokenOfTheVocabulary) {
  float nan = std::nanf("");
  std::vector<float> logits = {nan, nan, nan, nan, nan};
  ResolvedSampling greedy, plain, nucleus;
  greedy.temperature = 0;
  nucleus.top_p = 0.5f;
  std::vector<SampleRow> rows(3);
  rows[0].params = &greedy;
  rows[1].params = &plain;
  rows[2].params = &nucleus;
  for (const SampledToken& sample : SampleOn(2, logits, rows)) EXPECT_LT(sample.token_id, 5u);
}

}  // namespace
}  // namespace kvern
