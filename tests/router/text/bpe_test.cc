#include "router/text/bpe.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cluster/base/rng.h"

namespace kvern {
namespace {

// Pops come in order whatever the order of the pushes: ascending, descending or mixed.
TEST(BpeQueue, EqualsASortedSet) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    Rng rng(seed);
    const uint64_t ranks = 1 + rng.Below(6);
    const uint64_t pushes_in_ten = 3 + rng.Below(6);
    BpeQueue queue;
    std::multiset<std::pair<uint32_t, uint32_t>> expected;
    uint32_t place = 0;
    for (int i = 0; i < 300; ++i) {
      if (rng.Chance(pushes_in_ten, 10)) {
        const uint32_t rank = static_cast<uint32_t>(rng.Below(ranks));
        place = rng.Chance(9, 10) ? place + 1 : static_cast<uint32_t>(rng.Below(300));
        queue.Push({rank, place});
        expected.insert({rank, place});
      } else if (!expected.empty()) {
        ASSERT_FALSE(queue.empty());
        const BpeCandidate least = queue.Pop();
        ASSERT_EQ(std::make_pair(least.rank, least.left), *expected.begin()) << "seed " << seed;
        expected.erase(expected.begin());
      }
      ASSERT_EQ(queue.empty(), expected.empty());
    }
  }
}

TEST(BpeMerger, AppendsAndCanBeUsedAgain) {
  BpeMerges merges;
  ASSERT_TRUE(merges.Add(1, 1, {.rank = 0, .merged = 2}));
  ASSERT_TRUE(merges.Add(2, 2, {.rank = 1, .merged = 3}));
  EXPECT_FALSE(merges.Add(1, 1, {.rank = 2, .merged = 4}));
  BpeMerger merger(&merges);
  std::vector<uint32_t> output = {9};
  uint64_t steps = 0;
  merger.Merge(std::vector<uint32_t>{1, 1, 1, 1, 1, 1, 1}, &output, &steps);
  merger.Merge({}, &output, &steps);
  merger.Merge(std::vector<uint32_t>{1, 5, 1, 1}, &output, &steps);
  EXPECT_EQ(output, (std::vector<uint32_t>{9, 3, 2, 1, 1, 5, 2}));
  EXPECT_LE(steps, 9u * 11);
}

// "abcx": bc goes first, which makes the waiting candidate ab stale. What stands there then, a and
// bc, has a rule of its own, but a later one than bc and x.
TEST(BpeMerger, AStaleCandidateGivesItsPlaceNoEarlierRank) {
  BpeMerges merges;
  ASSERT_TRUE(merges.Add('b', 'c', {.rank = 0, .merged = 301}));
  ASSERT_TRUE(merges.Add('a', 'b', {.rank = 1, .merged = 300}));
  ASSERT_TRUE(merges.Add(301, 'x', {.rank = 2, .merged = 303}));
  ASSERT_TRUE(merges.Add('a', 301, {.rank = 3, .merged = 302}));
  BpeMerger merger(&merges);
  std::vector<uint32_t> output;
  uint64_t steps = 0;
  merger.Merge(std::vector<uint32_t>{'a', 'b', 'c', 'x', 'a', 'b', 'c'}, &output, &steps);
  EXPECT_EQ(output, (std::vector<uint32_t>{'a', 303, 302}));
}

}  // namespace
}  // namespace kvern
