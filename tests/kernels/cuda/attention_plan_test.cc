// How a step is cut: every token and split once, no more workspace than there is, long items first.
#include "kernels/cuda/attention_plan.h"

#include <map>
#include <utility>

#include "cluster/base/rng.h"
#include "gtest/gtest.h"

namespace kvern::gpu {
namespace {

// Checks that the plan covers each (token row, split) once and that partial slots do not overlap.
void CheckCover(const std::vector<AttentionSequence>& sequences, int32_t group,
                const AttentionBudget& budget, const AttentionPlan& plan) {
  std::map<std::pair<int32_t, int32_t>, int> walked;  // row, split
  std::map<int32_t, std::pair<int32_t, int32_t>> slots;
  const auto Take = [&](const AttentionItem& item, int32_t rows_max) {
    ASSERT_GT(item.tokens, 0);
    ASSERT_LE(item.tokens * group, rows_max);
    for (int32_t token = 0; token < item.tokens; ++token) {
      for (int32_t split = item.split_begin; split < item.split_end; ++split) {
        if (split * kSplitTokens > item.position + token) continue;
        ++walked[{item.first_row + token, split}];
        if (item.partial_stride == 0) continue;
        const int32_t slot = item.partial + token * item.partial_stride + split;
        ASSERT_LT(slot, plan.slots);
        ASSERT_TRUE(slots.insert({slot, {item.first_row + token, split}}).second);
      }
    }
  };
  for (const AttentionItem& item : plan.narrow) Take(item, 16);
  for (const AttentionItem& item : plan.wide) Take(item, 64);
  size_t expected = 0;
  for (const AttentionSequence& sequence : sequences) {
    for (int32_t token = 0; token < sequence.count; ++token) {
      for (int32_t split = 0; split * kSplitTokens <= sequence.start + token; ++split) {
        ++expected;
        ASSERT_EQ((walked[{sequence.first_row + token, split}]), 1);
      }
    }
  }
  ASSERT_EQ(walked.size(), expected);
  ASSERT_LE(plan.slots, budget.max_slots);
  size_t merged = 0;
  for (const AttentionMerge& merge : plan.merges) {
    for (int32_t split = 0; split < merge.splits; ++split, ++merged) {
      ASSERT_EQ(slots[merge.partial + split], std::make_pair(merge.row, split));
    }
  }
  ASSERT_EQ(merged, slots.size());
}

TEST(AttentionPlan, CoversEverythingOnceForAnyStep) {
  Rng rng(3);
  AttentionPlan plan;
  for (int turn = 0; turn < 300; ++turn) {
    const auto group = static_cast<int32_t>(1 + rng.Below(16));
    const auto kv_heads = static_cast<int32_t>(1 + rng.Below(8));
    std::vector<AttentionSequence> sequences;
    int32_t rows = 0;
    for (uint64_t i = rng.Below(12); i > 0; --i) {
      const auto count = static_cast<int32_t>(rng.Chance(2, 3) ? 1 : rng.Below(200));
      sequences.push_back({rows, static_cast<int32_t>(rng.Below(2000)), count, 0});
      rows += count;
    }
    const AttentionBudget budget = {static_cast<int32_t>(rng.Below(600)),
                                    static_cast<int32_t>(rng.Below(300))};
    PlanAttention(sequences, group * kv_heads, kv_heads, budget, &plan);
    CheckCover(sequences, group, budget, plan);
    // What the header tells to reserve.
    ASSERT_LE(plan.narrow.size(), static_cast<size_t>(rows + budget.max_slots));
    ASSERT_LE(plan.wide.size(), static_cast<size_t>(rows + budget.max_slots));
    ASSERT_LE(plan.merges.size(), static_cast<size_t>(rows));
  }
}

TEST(AttentionPlan, OneLongSequenceIsCutManyShortOnesAreNot) {
  AttentionPlan plan;
  PlanAttention(std::vector<AttentionSequence>{{0, 65535, 1, 0}}, 32, 8, {528, 4096}, &plan);
  EXPECT_EQ(plan.narrow.size(), 256u);
  EXPECT_EQ(plan.merges.size(), 1u);
  std::vector<AttentionSequence> many;
  for (int32_t i = 0; i < 512; ++i) many.push_back({i, 400 + i, 1, 0});
  PlanAttention(many, 32, 8, {528, 4096}, &plan);
  EXPECT_EQ(plan.narrow.size(), 512u);
  EXPECT_EQ(plan.slots, 0);
  EXPECT_EQ(plan.narrow.front().split_end, 4) << "the longest first";
}

}  // namespace
}  // namespace kvern::gpu
