#include "worker/model/distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cluster/base/rng.h"

namespace kvern {
namespace {

CandidateSet Whole(std::vector<float> logits) {
  CandidateSet set;
  for (uint32_t id = 0; id < logits.size(); ++id) {
    set.tokens.push_back({logits[id], logits[id], id});
  }
  std::sort(set.tokens.begin(), set.tokens.end(), IsBetter);
  for (const TokenLogit& token : set.tokens) {
    set.total_mass += std::exp(static_cast<double>(token.logit - set.tokens[0].logit));
  }
  return set;
}

// The `known` best of the same row.
CandidateSet Best(CandidateSet set, size_t known) {
  if (known < set.tokens.size()) set.floor = set.tokens[known - 1].logit;
  set.tokens.resize(std::min(known, set.tokens.size()));
  return set;
}

std::vector<float> RandomLogits(Rng& rng, size_t count, double spread) {
  std::vector<float> logits;
  for (size_t i = 0; i < count; ++i) {
    logits.push_back(static_cast<float>((UnitInterval(rng.Next()) - 0.5) * spread));
  }
  return logits;
}

TEST(DistributionTest, KnowingLessGivesTheSameOrNothing) {
  Rng rng(11);
  int answered = 0;
  for (int i = 0; i < 400; ++i) {
    CandidateSet whole = Whole(RandomLogits(rng, 200, 20));
    SamplingParams params;
    params.temperature = 1.0f;
    if (rng.Chance(1, 2)) params.top_k = static_cast<uint32_t>(rng.Between(1, 60));
    if (rng.Chance(1, 2)) params.top_p = static_cast<float>(UnitInterval(rng.Next()));
    if (rng.Chance(1, 2)) params.min_p = 0.1f * static_cast<float>(UnitInterval(rng.Next()));
    auto all = FilteredDistribution(whole, params, 200);
    ASSERT_TRUE(all.has_value());
    auto some = FilteredDistribution(Best(whole, 40), params, 200);
    if (!some) continue;
    ++answered;
    ASSERT_EQ(some->size(), all->size());
    for (size_t t = 0; t < all->size(); ++t) {
      EXPECT_EQ((*some)[t].token_id, (*all)[t].token_id);
      EXPECT_NEAR((*some)[t].probability, (*all)[t].probability, 1e-12);
    }
  }
  EXPECT_GT(answered, 100);
}

TEST(DistributionTest, TiesWithTheFloorAreNotTrusted) {
  CandidateSet set = Whole({3, 2, 2, 2, 2});
  SamplingParams params;
  params.top_k = 2;
  EXPECT_EQ(FilteredDistribution(set, params, 5)->size(), 5u);
  EXPECT_FALSE(FilteredDistribution(Best(set, 3), params, 5).has_value());
  params.top_k = 1;
  EXPECT_EQ(FilteredDistribution(Best(set, 3), params, 5)->size(), 1u);
}

TEST(DistributionTest, DrawsFollowTheProbabilities) {
  std::vector<TokenProbability> distribution = {{7, 0.5}, {3, 0.3}, {9, 0.2}};
  std::map<uint32_t, int> counts;
  constexpr int kDraws = 20000;
  for (uint32_t position = 0; position < kDraws; ++position) {
    ++counts[DrawToken(distribution, DrawKey(42, 0, position))];
  }
  // Six standard deviations of a binomial count.
  for (const TokenProbability& entry : distribution) {
    double sigma = std::sqrt(kDraws * entry.probability * (1 - entry.probability));
    EXPECT_NEAR(counts[entry.token_id], kDraws * entry.probability, 6 * sigma);
  }
}

TEST(DistributionTest, KeysDifferBySeedChoiceAndPosition) {
  uint64_t key = DrawKey(1, 2, 3);
  EXPECT_EQ(key, DrawKey(1, 2, 3));
  EXPECT_NE(key, DrawKey(2, 2, 3));
  EXPECT_NE(key, DrawKey(1, 3, 3));
  EXPECT_NE(key, DrawKey(1, 2, 4));
}

TEST(DistributionTest, FiltersThatDoNothingAreNone) {
  SamplingParams params;
  EXPECT_FALSE(HasFilters(params, 100));
  params.top_k = 100;
  EXPECT_FALSE(HasFilters(params, 100));
  params.top_k = 99;
  EXPECT_TRUE(HasFilters(params, 100));
  params = SamplingParams();
  params.min_p = 0.1f;
  EXPECT_TRUE(HasFilters(params, 100));
}

}  // namespace
}  // namespace kvern
