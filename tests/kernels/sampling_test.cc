#include "kernels/cpu/sampling.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/reference/sampling.h"
#include "tests/kernels/random_data.h"

namespace kvern {
namespace {

using testing::ElementsAre;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 100, 1000, 4099};

std::vector<uint32_t> Top(cpu::Isa isa, const std::vector<float>& logits, int64_t k) {
  std::vector<cpu::ScoredColumn> out(std::min(logits.size(), static_cast<size_t>(k)));
  const size_t count =
      cpu::SamplingFor(isa).top(logits.data(), static_cast<int64_t>(logits.size()), k, out.data());
  EXPECT_EQ(count, out.size());
  std::vector<uint32_t> columns;
  for (const cpu::ScoredColumn& c : out) columns.push_back(c.column);
  return columns;
}

TEST(SamplingTest, TopAgreesWithSorting) {
  Rng rng(1);
  for (size_t n : kSizes) {
    std::vector<float> logits = RandomFloats(rng, n, 10);
    // Half of the rounds have many equal values, so that order among equals matters.
    for (bool ties : {false, true}) {
      for (float& x : logits) x = ties ? std::round(x) : x;
      for (int64_t k : {1, 2, 20, 64, 1024}) {
        const std::vector<uint32_t> want = reference::Top(logits, static_cast<size_t>(k));
        for (cpu::Isa isa : SupportedIsas()) {
          ASSERT_EQ(Top(isa, logits, k), want) << cpu::IsaName(isa) << " n=" << n << " k=" << k;
        }
      }
    }
  }
}

TEST(SamplingTest, TopTakesNanForTheLowest) {
  const std::vector<float> logits = {std::nanf(""), 1, -kInfinity, std::nanf(""), 2};
  for (cpu::Isa isa : SupportedIsas()) {
    EXPECT_THAT(Top(isa, logits, 3), ElementsAre(4, 1, 0)) << cpu::IsaName(isa);
    EXPECT_EQ(Top(isa, logits, 9).size(), logits.size());
  }
}

TEST(SamplingTest, LogSumExpAgreesWithFloat64) {
  Rng rng(2);
  for (size_t n : kSizes) {
    const std::vector<float> logits = RandomFloats(rng, n, 30);
    for (float inverse_temperature : {0.25f, 1.0f, 3.0f}) {
      const double want = reference::SumExp(logits, static_cast<double>(inverse_temperature));
      for (cpu::Isa isa : SupportedIsas()) {
        float max = 0;
        const double got = cpu::SamplingFor(isa).log_sum_exp(logits.data(), static_cast<int64_t>(n),
                                                             inverse_temperature, &max);
        EXPECT_EQ(max, *std::max_element(logits.begin(), logits.end()));
        // The exponent of e^((x - max) / T) carries the float32 rounding of its argument, at most
        // 180.
        ASSERT_NEAR(std::log(got), std::log(want), 2e-6) << cpu::IsaName(isa) << " n=" << n;
      }
    }
  }
}

// Column and value by the definition, in float64 from the standard library.
uint32_t WantGumbel(const std::vector<float>& logits, double inverse_temperature, uint64_t key,
                    uint64_t first_id, double* margin) {
  double best = -1e300;
  double second = -1e300;
  uint32_t column = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double u = UnitInterval(HashCounter(key, first_id + i));
    const double value =
        static_cast<double>(logits[i]) * inverse_temperature + reference::Gumbel(u);
    if (value > best) {
      second = best;
      best = value;
      column = static_cast<uint32_t>(i);
    } else if (value > second) {
      second = value;
    }
  }
  *margin = best - second;
  return column;
}

TEST(SamplingTest, GumbelMaxFollowsItsDefinition) {
  Rng rng(3);
  for (size_t n : kSizes) {
    const std::vector<float> logits = RandomFloats(rng, n, 4);
    for (int round = 0; round < 20; ++round) {
      const uint64_t key = rng.Next();
      const uint64_t first_id = rng.Below(50000);
      double margin = 0;
      const uint32_t want = WantGumbel(logits, 0.8f, key, first_id, &margin);
      for (cpu::Isa isa : SupportedIsas()) {
        const cpu::ScoredColumn got = cpu::SamplingFor(isa).gumbel_max(
            logits.data(), static_cast<int64_t>(n), 0.8f, key, first_id);
        if (margin > 1e-5) {
          ASSERT_EQ(got.column, want) << cpu::IsaName(isa);
        }
        const double u = UnitInterval(HashCounter(key, first_id + got.column));
        const double value = static_cast<double>(logits[got.column]) * static_cast<double>(0.8f) +
                             reference::Gumbel(u);
        ASSERT_NEAR(got.value, value, 1e-6 * (1 + std::fabs(value)));
      }
    }
  }
}

TEST(SamplingTest, GumbelNoiseHasTheSameBitsOnEveryTargetAndShard) {
  Rng rng(4);
  const std::vector<float> logits = RandomFloats(rng, 1000, 4);
  for (int round = 0; round < 50; ++round) {
    const uint64_t key = rng.Next();
    const cpu::ScoredColumn whole =
        cpu::SamplingFor(cpu::Isa::kPlain).gumbel_max(logits.data(), 1000, 1.3f, key, 0);
    for (cpu::Isa isa : SupportedIsas()) {
      const cpu::SamplingKernels& kernels = cpu::SamplingFor(isa);
      const cpu::ScoredColumn same = kernels.gumbel_max(logits.data(), 1000, 1.3f, key, 0);
      EXPECT_EQ(same.column, whole.column);
      EXPECT_EQ(std::bit_cast<uint32_t>(same.value), std::bit_cast<uint32_t>(whole.value));
      // Any cut into shards gives the same winner.
      const auto cut = static_cast<int64_t>(1 + rng.Below(998));
      const auto left = kernels.gumbel_max(logits.data(), cut, 1.3f, key, 0);
      auto right = kernels.gumbel_max(logits.data() + cut, 1000 - cut, 1.3f, key,
                                      static_cast<uint64_t>(cut));
      right.column += static_cast<uint32_t>(cut);
      const cpu::ScoredColumn merged = right.value > left.value ? right : left;
      EXPECT_EQ(merged.column, whole.column) << cut;
    }
  }
}

TEST(SamplingTest, GumbelMaxDrawsFromTheSoftmax) {
  const std::vector<float> logits = {0, std::log(2.0f), std::log(5.0f), -kInfinity};
  int counts[4] = {};
  constexpr int kDraws = 8000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[cpu::SamplingFor(cpu::BestIsa())
                 .gumbel_max(logits.data(), 4, 1.0f, static_cast<uint64_t>(i), 0)
                 .column];
  }
  // Four standard deviations of each count are below 180.
  EXPECT_NEAR(counts[0], kDraws / 8, 180);
  EXPECT_NEAR(counts[1], kDraws / 4, 180);
  EXPECT_NEAR(counts[2], kDraws * 5 / 8, 180);
  EXPECT_EQ(counts[3], 0);
}

}  // namespace
}  // namespace kvern
