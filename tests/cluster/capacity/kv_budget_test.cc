// The KV formula against blocks counted one by one.
#include "cluster/capacity/kv_budget.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "cluster/base/rng.h"

namespace kvern {
namespace {

// A block is named by its index and, unless it lies wholly within the prompt, by its choice.
uint64_t CountBlocks(uint64_t prompt, uint64_t max_new, uint64_t n, uint64_t block) {
  std::set<std::pair<uint64_t, uint64_t>> blocks;
  for (uint64_t choice = 0; choice < n; ++choice) {
    for (uint64_t token = 0; token < prompt + max_new; ++token) {
      uint64_t index = token / block;
      bool shared = (index + 1) * block <= prompt;
      blocks.insert({index, shared ? 0 : choice + 1});
    }
  }
  return blocks.size();
}

TEST(BlocksNeeded, IsTheNumberOfDistinctBlocks) {
  for (uint64_t prompt = 1; prompt <= 40; ++prompt) {
    for (uint64_t max_new = 1; max_new <= 40; ++max_new) {
      for (uint64_t n : {1u, 2u, 3u, 8u}) {
        ASSERT_EQ(BlocksNeeded(prompt, max_new, n, 16), CountBlocks(prompt, max_new, n, 16))
            << prompt << " " << max_new << " " << n;
      }
    }
  }
}

TEST(BlocksNeeded, OtherBlockSizes) {
  Rng rng(7);
  for (int i = 0; i < 500; ++i) {
    auto prompt = static_cast<uint64_t>(rng.Between(1, 300));
    auto max_new = static_cast<uint64_t>(rng.Between(1, 100));
    auto n = static_cast<uint64_t>(rng.Between(1, 8));
    auto block = static_cast<uint32_t>(rng.Between(1, 64));
    ASSERT_EQ(BlocksNeeded(prompt, max_new, n, block), CountBlocks(prompt, max_new, n, block));
  }
}

bool Fits(uint64_t prompt, uint64_t total, uint64_t n, uint64_t blocks) {
  return prompt < total && BlocksNeeded(prompt, total - prompt, n, 16) <= blocks;
}

TEST(TokensThatFit, IsTheLargestTotalOfThisPromptAndThisN) {
  for (uint64_t blocks = 1; blocks < 14; ++blocks) {
    for (uint64_t n : {1u, 2u, 3u, 8u}) {
      for (uint64_t prompt = 1; prompt <= 250; ++prompt) {
        SCOPED_TRACE(testing::Message() << blocks << " " << n << " " << prompt);
        uint64_t tokens = TokensThatFit(blocks, prompt, n, 16);
        ASSERT_FALSE(Fits(prompt, tokens + 1, n, blocks));
        if (Fits(prompt, prompt + 1, n, blocks)) {
          ASSERT_TRUE(Fits(prompt, tokens, n, blocks));
        } else if (blocks >= n) {  // with a shorter prompt, and with none is there a larger total
          ASSERT_TRUE(Fits(tokens - 1, tokens, n, blocks));
          ASSERT_FALSE(Fits(tokens, tokens + 1, n, blocks));
        } else {
          ASSERT_EQ(tokens, 0u);
        }
      }
    }
  }
}

TEST(KvBytesPerToken, KeysAndValuesOfAllLayers) {
  // SmolLM2-135M: 30 layers, 3 KV heads of 64, two bytes each: 2 * 30 * 3 * 64 * 2.
  EXPECT_EQ(KvBytesPerToken(30, 3, 64, 2), 23040u);
  // Beyond 32 bits.
  EXPECT_EQ(KvBytesPerToken(1u << 20, 1u << 10, 256, 4), uint64_t{1} << 41);
}

TEST(SplitKvHeads, EvenAsTheyGoLargerSharesFirst) {
  auto two = SplitKvHeads(3, 2);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(*two, (std::vector<ShardRange>{{0, 2}, {2, 3}}));
  for (uint32_t heads = 1; heads <= 20; ++heads) {
    for (uint32_t world = 1; world <= heads; ++world) {
      auto split = SplitKvHeads(heads, world);
      ASSERT_TRUE(split.ok());
      ASSERT_EQ(split->size(), world);
      uint32_t next = 0;
      for (const ShardRange& range : *split) {
        EXPECT_EQ(range.begin, next);
        EXPECT_GE(range.size(), heads / world);
        EXPECT_LE(range.size(), (heads + world - 1) / world);
        EXPECT_LE(range.size(), split->front().size());
        next = range.end;
      }
      EXPECT_EQ(next, heads);
    }
  }
}

TEST(SplitKvHeads, RefusesNoRankAndMoreRanksThanHeads) {
  EXPECT_FALSE(SplitKvHeads(3, 0).ok());
  auto four = SplitKvHeads(3, 4);
  ASSERT_FALSE(four.ok());
  EXPECT_EQ(
      four.status().message(),
      "tensor-parallel size 4, allowed: 1 to 3 (the model's KV heads; replicated heads are not "
      "there yet)");
}

}  // namespace
}  // namespace kvern
