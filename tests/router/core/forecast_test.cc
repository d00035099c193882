// What the router expects: lengths, peaks, step times, releases; against plain recomputation.
#include "router/core/forecast.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cluster/base/rng.h"
#include "router/core/breaker.h"
#include "router/core/length_model.h"
#include "router/core/release_curve.h"
#include "router/core/step_model.h"

namespace kvern::router {
namespace {

// Step by step: everyone who has not ended grows.
uint64_t PeakByStepping(const std::vector<ForecastItem>& items) {
  uint32_t last = 0;
  for (const ForecastItem& item : items) last = std::max(last, item.remaining);
  uint64_t peak = 0;
  for (uint32_t step = 0; step <= last; ++step) {
    uint64_t tokens = 0;
    uint64_t sequences = 0;
    for (const ForecastItem& item : items) {
      if (item.remaining < step) continue;
      tokens += item.tokens + uint64_t{item.growth} * step;
      sequences += item.growth;
    }
    peak = std::max(peak, ExpectedBlocks(tokens, sequences));
  }
  return peak;
}

TEST(Forecast, EqualsAStepByStepCount) {
  Rng rng(7);
  for (int round = 0; round < 300; ++round) {
    Forecast forecast;
    std::vector<ForecastItem> items;
    auto draw = [&] {
      return ForecastItem{static_cast<uint64_t>(rng.Between(1, 200)),
                          static_cast<uint32_t>(rng.Between(0, 60)),
                          static_cast<uint32_t>(rng.Between(1, 4))};
    };
    for (int64_t n = rng.Between(0, 12); n > 0; --n) {
      items.push_back(draw());
      forecast.Add(items.back());
    }
    forecast.Settle();
    ASSERT_EQ(forecast.Peak(), PeakByStepping(items));
    for (int i = 0; i < 3; ++i) {
      items.push_back(draw());
      ASSERT_EQ(forecast.PeakWith(items.back()), PeakByStepping(items));
      forecast.Insert(items.back());
      ASSERT_EQ(forecast.Peak(), PeakByStepping(items));
    }
  }
}

TEST(LengthForecast, KnowsNothingAtFirst) {
  LengthModel own, all;
  for (int i = 0; i < 15; ++i) all.Observe(10);
  EXPECT_EQ(LengthForecast(own, all, 80).Total(0, 4096), 4096u);
  all.Observe(10);
  EXPECT_LT(LengthForecast(own, all, 80).Total(0, 4096), 13u);
}

TEST(LengthForecast, IsTheQuantileOfWhatIsLonger) {
  LengthModel own, all;
  std::vector<uint32_t> seen;
  Rng rng(3);
  for (int i = 0; i < 4000; ++i) {
    seen.push_back(static_cast<uint32_t>(rng.Between(1, 1000)));
    all.Observe(seen.back());
  }
  std::sort(seen.begin(), seen.end());
  for (uint32_t produced : {0u, 100u, 500u, 900u}) {
    auto longer = std::upper_bound(seen.begin(), seen.end(), produced);
    auto index = static_cast<ptrdiff_t>(static_cast<double>(seen.end() - longer) * 0.8);
    double expected = *(longer + index);
    uint32_t total = LengthForecast(own, all, 80).Total(produced, 4096);
    EXPECT_GE(total, expected * 0.95) << produced;
    EXPECT_LE(total, expected * 1.15) << produced;
  }
}

TEST(LengthForecast, IsAlwaysBetweenWhatIsThereAndMaxTokens) {
  Rng rng(4);
  LengthModel own, all;
  for (int i = 0; i < 20000; ++i) {
    auto length = static_cast<uint32_t>(rng.Between(1, 1 << rng.Between(1, 20)));
    all.Observe(length);
    if (rng.Chance(1, 3)) own.Observe(length);
    auto max_tokens = static_cast<uint32_t>(rng.Between(1, 1 << rng.Between(1, 20)));
    auto produced = static_cast<uint32_t>(rng.Below(max_tokens));
    for (uint32_t percent : {0u, 1u, 50u, 99u, 100u}) {
      uint32_t total = LengthForecast(own, all, percent).Total(produced, max_tokens);
      ASSERT_GT(total, produced);
      ASSERT_LE(total, max_tokens);
    }
  }
}

TEST(LengthForecast, ATenantsOwnLengthsOutweighTheOthers) {
  LengthModel own, all;
  for (int i = 0; i < 2000; ++i) all.Observe(1000);
  for (int i = 0; i < 1000; ++i) own.Observe(10), all.Observe(10);
  EXPECT_LT(LengthForecast(own, all, 80).Total(0, 4096), 13u);
  LengthModel newcomer;
  EXPECT_GE(LengthForecast(newcomer, all, 80).Total(0, 4096), 1000u);
}

TEST(LengthForecast, IsExactForShortOnes) {
  LengthModel own, all;
  for (int i = 0; i < 10; ++i) all.Observe(4), all.Observe(7);
  LengthForecast half(own, all, 50);
  EXPECT_EQ(half.Total(0, 4096), 4u);
  EXPECT_EQ(half.Total(3, 4096), 4u);
  EXPECT_EQ(half.Total(4, 4096), 7u);   // those of 4 have ended
  EXPECT_EQ(half.Total(7, 4096), 30u);  // as long again, and some
  EXPECT_EQ(half.Total(7, 20), 20u);
  EXPECT_EQ(LengthForecast(own, all, 51).Total(0, 4096), 7u);
  EXPECT_EQ(LengthForecast(own, all, 0).Total(100, 4096), 101u);
}

TEST(LengthForecast, RemembersWhenOldOnesLoseWeight) {
  LengthModel own, all;
  for (int i = 0; i < 4096; ++i) all.Observe(7);
  EXPECT_EQ(all.count(), 2048u);
  EXPECT_EQ(LengthForecast(own, all, 80).Total(0, 4096), 7u);
}

TEST(LengthForecast, FollowsAChangeWithinSomeThousands) {
  LengthModel own, all;
  for (int i = 0; i < 50'000; ++i) all.Observe(10);
  for (int i = 0; i < 6'000; ++i) all.Observe(1000);
  EXPECT_GE(LengthForecast(own, all, 50).Total(0, 4096), 1000u);
}

TEST(StepModel, FindsTheFixedPartAndTheRate) {
  StepModel model;
  Rng rng(5);
  for (int i = 0; i < 500; ++i) {
    auto tokens = static_cast<uint64_t>(rng.Between(0, 1024));
    model.Observe(i, 1, 5000 + tokens * 30, tokens, 0);  // 5 ms and 30 us a token
  }
  Duration time = model.Prefill(500, 10'000, 1000);
  EXPECT_NEAR(static_cast<double>(time), (10 * 5e6 + 10'000 * 30e3), 5e6);
  EXPECT_EQ(model.Prefill(500, 0, 1000), 0);
}

TEST(StepModel, WithEqualStepsTheRateIsWhatWasSeen) {
  StepModel model;
  for (int i = 0; i < 50; ++i) model.Observe(i, 1, 10'000, 512, 0);
  EXPECT_NEAR(static_cast<double>(model.Prefill(50, 5120, 512)), 100e6, 1e6);
}

// What decodes take is not the price of the few prompt tokens beside them.
TEST(StepModel, ShortPromptsAndLongAnswersDoNotTellTheRate) {
  StepModel model;
  Rng rng(7);
  for (int i = 0; i < 2000; ++i) {
    uint64_t prompt = i % 25 == 0 ? 4 : 0;
    model.Observe(i, 1, 30'000 + rng.Below(10'000) + prompt * 200, prompt, 0);
    // Two chunks at 40 ms a step, whatever the tokens cost.
    ASSERT_LT(model.Prefill(i, 1000, 512), 200 * kMillisecond) << i;
  }
  // Nor for as long as a long prompt is remembered: it tells the rate, then it is forgotten.
  for (int i = 0; i < 2; ++i) model.Observe(2000, 1, 30'000 + 450 * 1000, 450, 0);
  EXPECT_NEAR(static_cast<double>(model.Prefill(2000, 900, 450)), 960e6, 100e6);
  for (int i = 0; i < 900; ++i) {
    model.Observe(2001 + i, 1, 30'000 + rng.Below(10'000), 0, 0);
    ASSERT_LT(model.Prefill(2001 + i, 900, 450), 2 * kSecond) << i;
  }
}

TEST(StepModel, ForgetsWhatIsOld) {
  StepModel model;
  EXPECT_FALSE(model.known(0));
  model.Observe(0, 1, 10'000, 512, 0);
  EXPECT_TRUE(model.known(StepModel::kMemory - 1));
  EXPECT_FALSE(model.known(StepModel::kMemory));
  EXPECT_EQ(model.Prefill(StepModel::kMemory, 512, 512), 0);
}

// An outlier is no reason to leave a group idle, and the next step puts it right.
TEST(StepModel, OneLookIsNotTrustedAndAShorterStepDisprovesIt) {
  StepModel model;
  model.Observe(0, 1, 20'000'000, 100, 0);
  EXPECT_TRUE(model.known(kSecond));
  EXPECT_EQ(model.speed().trusted_until, 0);
  model.Observe(0, 1, 10'000, 0, 1);  // says nothing of prefill
  EXPECT_EQ(model.speed().trusted_until, 0);
  model.Observe(kSecond, 1, 110'000, 100, 0);
  EXPECT_EQ(model.speed().trusted_until, kSecond);
  EXPECT_NEAR(static_cast<double>(model.Prefill(kSecond, 1000, 100)), 1.1e9, 1e6);
}

// Chunks of a long prompt take longer and longer; the first of the next is no reason to forget
// them.
TEST(StepModel, ManyLooksAreNotForgottenForAShortOne) {
  StepModel model;
  for (uint64_t i = 0; i < 60; ++i) model.Observe(0, 1, 60'000 + 7'500 * i, 512, 0);
  Duration mean = model.Prefill(0, 512, 512);
  model.Observe(0, 1, 60'000, 512, 0);
  EXPECT_GT(model.Prefill(0, 512, 512), mean * 9 / 10);
}

TEST(StepModel, TrustGrowsWithEachLookAndEndsWithOneThatIsMuchLonger) {
  StepModel model;
  for (int i = 0; i < 5; ++i) model.Observe(0, 1, 100'000, 100, 0);
  EXPECT_EQ(model.speed().trusted_until, 4 * StepModel::kTrustPerLook);
  for (int i = 0; i < 100; ++i) model.Observe(0, 1, 100'000, 100, 0);
  EXPECT_EQ(model.speed().trusted_until, StepModel::kMemory);
  model.Observe(kSecond, 1, 5'000'000, 100, 0);
  EXPECT_EQ(model.speed().trusted_until, kSecond);
}

TEST(StepModel, SurvivesAnyNumbers) {
  StepModel model;
  Rng rng(6);
  for (int i = 0; i < 2000; ++i) {
    model.Observe(i, 1 + rng.Below(1000), rng.Next() >> rng.Below(64), rng.Next() >> rng.Below(64),
                  0);
    ASSERT_GE(model.MeanStep(i), 0);
    ASSERT_GE(model.Prefill(i, 1 + rng.Below(1 << 20), 1 + rng.Below(1 << 20)), 0);
  }
}

// Groups that are alike, whatever each ran: 5 ms and 3 for each row. One of another kind takes
// twice as long for the same.
TEST(DecodeCost, ComparesGroupsThatRanDifferentBatches) {
  DecodeCost cost;
  EXPECT_EQ(cost.Step(16), 0);
  StepModel groups[3];
  const uint64_t rows[] = {1, 16, 6};
  const uint64_t times[] = {1, 1, 2};
  EXPECT_EQ(cost.Slowness(groups[0].speed(), 0), DecodeCost::kLikeOthers);
  for (int i = 0; i < 300; ++i) {
    for (size_t g = 0; g < 2; ++g) {
      groups[g].Observe(i, 2, 2 * times[g] * (5000 + 3000 * rows[g]), 0, 2 * rows[g]);
      cost.Observe(groups[g].speed().rows, groups[g].speed().MeanDecode(i));
    }
  }
  auto step = [&](uint64_t n) { return static_cast<double>(cost.Step(n * StepSpeed::kRowParts)); };
  EXPECT_NEAR(step(1), 8e6, 0.2e6);
  EXPECT_NEAR(step(8), 29e6, 1e6);
  for (int i = 0; i < 10; ++i) groups[2].Observe(i, 1, times[2] * (5000 + 3000 * rows[2]), 0, 6);
  auto slowness = [&](size_t g, Time now) {
    return static_cast<double>(cost.Slowness(groups[g].speed(), now)) /
           static_cast<double>(DecodeCost::kLikeOthers);
  };
  EXPECT_NEAR(slowness(0, 300), 1, 0.05);
  EXPECT_NEAR(slowness(1, 300), 1, 0.05);
  EXPECT_NEAR(slowness(2, 300), 2, 0.1);
  EXPECT_EQ(slowness(2, StepModel::kMemory + 10), 1) << "what it was is forgotten";
}

// Where all batches are alike nothing is known of others: a step of any takes as long.
TEST(DecodeCost, WithEqualBatchesTheStepIsWhatWasSeen) {
  DecodeCost cost;
  for (int i = 0; i < 300; ++i) cost.Observe(8 * StepSpeed::kRowParts, 20 * kMillisecond);
  EXPECT_NEAR(static_cast<double>(cost.Step(StepSpeed::kRowParts)), 20e6, 0.2e6);
  EXPECT_NEAR(static_cast<double>(cost.Step(100 * StepSpeed::kRowParts)), 20e6, 0.2e6);
}

TEST(DecodeCost, SurvivesAnyNumbers) {
  DecodeCost cost;
  StepModel model;
  Rng rng(8);
  for (int i = 0; i < 2000; ++i) {
    model.Observe(i, 1 + rng.Below(1000), rng.Next() >> rng.Below(64), rng.Next() >> rng.Below(64),
                  rng.Below(uint64_t{1} << 40) >> rng.Below(40));
    cost.Observe(model.speed().rows, model.speed().MeanDecode(i));
    ASSERT_GE(cost.Step(rng.Below(1 << 20)), 1);
    ASSERT_GE(cost.Slowness(model.speed(), i), 1u);
  }
}

TEST(ReleaseCurve, FollowsTheEndsAndThenTheRate) {
  ReleaseCurve curve;
  EXPECT_EQ(curve.Until(0), 0);
  EXPECT_EQ(curve.Until(1), kTimeMax);
  // 1000 blocks, each held for 10 s.
  for (int i = 1; i <= 100; ++i) curve.Add(i * 100 * kMillisecond, 10 * kSecond, 10);
  EXPECT_NEAR(static_cast<double>(curve.Until(500)), 5e9, 1e9);
  EXPECT_NEAR(static_cast<double>(curve.Until(1000)), 10e9, 1.5e9);
  EXPECT_NEAR(static_cast<double>(curve.Until(3000)), 30e9, 3e9);
  for (uint64_t blocks = 1; blocks < 4000; ++blocks) {
    ASSERT_LE(curve.Until(blocks), curve.Until(blocks + 1)) << blocks;
  }
}

TEST(ReleaseCurve, KnowsTheRateWhenAllEndTogether) {
  for (Duration rest : {kMillisecond, 5 * kSecond, 10 * kSecond}) {
    ReleaseCurve curve;
    for (int i = 0; i < 100; ++i) curve.Add(rest, 10 * kSecond, 10);
    EXPECT_GE(curve.Until(3000), 27 * kSecond) << rest;
    EXPECT_LE(curve.Until(3000), 66 * kSecond) << rest;
  }
}

TEST(Breaker, OpensAfterFailuresInARowAndTriesOne) {
  Breaker breaker;
  breaker.Failed(0);
  breaker.Failed(0);
  EXPECT_TRUE(breaker.Admits(0, 5));
  breaker.FirstToken();
  breaker.Failed(0);
  breaker.Failed(0);
  breaker.Failed(0);
  EXPECT_FALSE(breaker.Admits(Breaker::kFirstPause - 1, 0));
  EXPECT_TRUE(breaker.Admits(Breaker::kFirstPause, 0));
  EXPECT_FALSE(breaker.Admits(Breaker::kFirstPause, 1));  // one at a time
  for (int i = 0; i < 100; ++i) breaker.Failed(0);
  EXPECT_TRUE(breaker.Admits(Breaker::kLongestPause, 0));
  breaker.FirstToken();
  EXPECT_TRUE(breaker.Admits(0, 100));
}

TEST(Breaker, PausesForTwiceAsLongEachTimeUpToAMinute) {
  Breaker breaker;
  Time now = 7 * kSecond;
  breaker.Failed(now);
  breaker.Failed(now);
  EXPECT_EQ(breaker.closed_until(), 0);
  for (Duration pause : {1, 2, 4, 8, 16, 32}) {
    breaker.Failed(now);
    EXPECT_EQ(breaker.closed_until(), now + pause * kSecond);
    now = breaker.closed_until();
  }
  for (int i = 0; i < 200; ++i, now += kSecond) {
    breaker.Failed(now);
    ASSERT_EQ(breaker.closed_until(), now + 60 * kSecond) << i;
  }
  breaker.FirstToken();
  EXPECT_EQ(breaker.closed_until(), 0);
}

}  // namespace
}  // namespace kvern::router
