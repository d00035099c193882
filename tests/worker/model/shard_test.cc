#include "worker/model/shard.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "cluster/base/rng.h"
#include "worker/model/rope.h"

namespace kvern {
namespace {

ModelConfig SmolLm2() {
  ModelConfig config;
  config.num_layers = 30;
  config.hidden_size = 576;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.intermediate_size = 1536;
  config.vocab_size = 49152;
  config.tied_embeddings = true;
  return config;
}

absl::StatusOr<std::vector<RankShard>> ShardByElements(const ModelConfig& config, uint32_t world,
                                                       uint32_t unit) {
  KVERN_ASSIGN_OR_RETURN(const ShardCosts costs, ElementCosts(config, world));
  return ShardModel(config, world, unit, costs);
}

uint64_t Elements(const ModelConfig& config, const RankShard& shard) {
  uint64_t q = shard.q_heads.size();
  uint64_t attention = (2 * q + 2 * shard.kv_heads.size()) * config.head_dim;
  uint64_t layer = (attention + 3 * shard.intermediate.size()) * config.hidden_size;
  uint64_t tables = config.tied_embeddings ? 1 : 2;
  return layer * config.num_layers + tables * shard.vocab.size() * config.hidden_size;
}

// Ranges follow each other from 0 to `total` and none is empty.
void ExpectCovers(const std::vector<ShardRange>& ranges, uint32_t total) {
  uint32_t next = 0;
  for (const ShardRange& range : ranges) {
    EXPECT_EQ(range.begin, next);
    EXPECT_GT(range.end, range.begin);
    next = range.end;
  }
  EXPECT_EQ(next, total);
}

void ExpectWhole(const ModelConfig& config, const std::vector<RankShard>& shards, uint32_t unit) {
  std::vector<ShardRange> kv, q, columns, rows;
  for (const RankShard& shard : shards) {
    kv.push_back(shard.kv_heads);
    q.push_back(shard.q_heads);
    columns.push_back(shard.intermediate);
    rows.push_back(shard.vocab);
    EXPECT_EQ(shard.intermediate.begin % unit, 0u);
    uint32_t group = config.num_heads / config.num_kv_heads;
    EXPECT_EQ(shard.q_heads.begin, shard.kv_heads.begin * group);
  }
  ExpectCovers(kv, config.num_kv_heads);
  ExpectCovers(q, config.num_heads);
  ExpectCovers(columns, config.intermediate_size);
  ExpectCovers(rows, config.vocab_size);
}

TEST(ShardTest, UnevenHeadsAreEvenedOutByColumnsAndRows) {
  ModelConfig config = SmolLm2();
  auto shards = ShardByElements(config, 2, 32);
  ASSERT_TRUE(shards.ok()) << shards.status();
  ExpectWhole(config, *shards, 32);
  EXPECT_EQ((*shards)[0].q_heads, (ShardRange{0, 6}));
  EXPECT_EQ((*shards)[1].q_heads, (ShardRange{6, 9}));
  EXPECT_LT((*shards)[0].intermediate.size(), (*shards)[1].intermediate.size());
  uint64_t first = Elements(config, (*shards)[0]);
  uint64_t second = Elements(config, (*shards)[1]);
  // Vocabulary rows are the finest grain: the ranks differ by at most one.
  EXPECT_LE(std::max(first, second) - std::min(first, second), uint64_t{config.hidden_size});
}

TEST(ShardTest, OneRankHoldsEverything) {
  auto shards = ShardByElements(SmolLm2(), 1, 32);
  ASSERT_TRUE(shards.ok());
  ExpectWhole(SmolLm2(), *shards, 32);
}

TEST(ShardTest, RandomModelsAreCoveredAndEven) {
  Rng rng(3);
  for (int i = 0; i < 500; ++i) {
    ModelConfig config;
    config.num_layers = static_cast<uint32_t>(rng.Between(1, 40));
    config.num_kv_heads = static_cast<uint32_t>(rng.Between(1, 9));
    config.num_heads = config.num_kv_heads * static_cast<uint32_t>(rng.Between(1, 8));
    config.head_dim = static_cast<uint32_t>(2 * rng.Between(1, 64));
    config.hidden_size = static_cast<uint32_t>(rng.Between(8, 2048));
    config.intermediate_size = 32 * static_cast<uint32_t>(rng.Between(9, 200));
    config.vocab_size = static_cast<uint32_t>(rng.Between(9, 60000));
    config.tied_embeddings = rng.Chance(1, 2);
    auto world = static_cast<uint32_t>(rng.Between(1, config.num_kv_heads));
    uint32_t unit = rng.Chance(1, 2) ? 32 : 1;
    auto shards = ShardByElements(config, world, unit);
    ASSERT_TRUE(shards.ok()) << shards.status();
    ExpectWhole(config, *shards, unit);
    // A rank may be above the others only if it could give nothing away.
    uint64_t lightest = UINT64_MAX;
    for (const RankShard& shard : *shards) lightest = std::min(lightest, Elements(config, shard));
    uint64_t grain = uint64_t{config.hidden_size} * (config.tied_embeddings ? 1 : 2);
    for (const RankShard& shard : *shards) {
      bool minimal = shard.vocab.size() == 1;
      EXPECT_TRUE(minimal || Elements(config, shard) - lightest <= grain);
    }
  }
}

TEST(ShardTest, ImpossibleCutsAreRefusedByName) {
  ModelConfig config = SmolLm2();
  auto heads = ShardByElements(config, 4, 32);
  EXPECT_TRUE(absl::IsInvalidArgument(heads.status())) << heads.status();
  config.intermediate_size = 100;
  auto unit = ShardByElements(config, 2, 32);
  EXPECT_NE(unit.status().message().find("intermediate_size 100"), absl::string_view::npos);
  config.intermediate_size = 64;
  EXPECT_TRUE(absl::IsInvalidArgument(ShardByElements(config, 3, 32).status()));
  config = SmolLm2();
  config.vocab_size = 1;
  auto vocab = ShardByElements(config, 2, 32);
  EXPECT_NE(vocab.status().message().find("vocab_size 1"), absl::string_view::npos);
}

TEST(RopeTest, PlainFrequenciesAndRotation) {
  RopeConfig config;
  config.theta = 10000;
  auto frequencies = RopeFrequencies(config, 4);
  ASSERT_EQ(frequencies.size(), 2u);
  EXPECT_DOUBLE_EQ(frequencies[0], 1.0);
  EXPECT_NEAR(frequencies[1], 0.01, 1e-15);
  float cos[2], sin[2];
  FillRopeRow(frequencies, 3, cos, sin);
  EXPECT_FLOAT_EQ(cos[0], -0.9899925f);
  EXPECT_FLOAT_EQ(sin[1], 0.0299955f);
}

TEST(RopeTest, RunsAreTheRowsOrTheFloatsBesideThem) {
  RopeConfig config;
  config.theta = 500000;
  const std::vector<double> frequencies = RopeFrequencies(config, 128);
  const RopeRuns runs(frequencies);
  std::vector<float> cos(RopeRuns::kRun * 64), sin(RopeRuns::kRun * 64);
  std::vector<float> row_cos(64), row_sin(64);
  size_t others = 0;
  const uint32_t firsts[] = {0, 256, 131072 - 256, (1u << 24) - 256};
  for (uint32_t first : firsts) {
    runs.Fill(first, RopeRuns::kRun, cos.data(), sin.data());
    for (uint32_t row = 0; row < RopeRuns::kRun; ++row) {
      FillRopeRow(frequencies, first + row, row_cos.data(), row_sin.data());
      for (size_t i = 0; i < 64; ++i) {
        // Near 0 the float's own steps are finer than the angle's rounding.
        ASSERT_NEAR(cos[row * 64 + i], row_cos[i], 6e-8) << "position " << first + row;
        ASSERT_NEAR(sin[row * 64 + i], row_sin[i], 6e-8) << "position " << first + row;
        const bool same = cos[row * 64 + i] == row_cos[i] && sin[row * 64 + i] == row_sin[i];
        if (!same) ++others;
        ASSERT_TRUE(same || first > 0) << "position " << row;
      }
    }
  }
  EXPECT_LT(others, std::size(firsts) * 64 * RopeRuns::kRun / 20);
}

TEST(RopeTest, Llama3KeepsShortWavesAndSlowsLongOnes) {
  RopeConfig plain;
  plain.theta = 500000;
  RopeConfig stretched = plain;
  stretched.llama3 = RopeConfig::Llama3Scaling{8, 1, 4, 8192};
  auto before = RopeFrequencies(plain, 128);
  auto after = RopeFrequencies(stretched, 128);
  EXPECT_EQ(after.front(), before.front());
  EXPECT_DOUBLE_EQ(after.back(), before.back() / 8);
  // Between the bands the factor falls from 1 to 1/8.
  double last = 1;
  for (size_t i = 0; i < before.size(); ++i) {
    double ratio = after[i] / before[i];
    EXPECT_LE(ratio, last + 1e-12);
    last = ratio;
  }
}

}  // namespace
}  // namespace kvern
