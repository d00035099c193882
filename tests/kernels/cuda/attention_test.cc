// Attention against float64, and against itself bit for bit under every way to cut the work.
#include <algorithm>
#include <string>
#include <tuple>

#include "tests/kernels/cuda/attention_case.h"

namespace kvern::gpu {
namespace {

constexpr AttentionBudget kWhole = {1, 0};      // no item is cut
constexpr AttentionBudget kCut = {4096, 4096};  // all items of two splits or more are

// Weights are rounded to bf16 before they meet the values (|v| <= 1, weights sum to 1), and so is
// the result: each by at most 2^-8 of itself, and the first kind averages out.
constexpr double kTolerance = 0x1p-8 + 1e-4;

void ExpectNear(const std::vector<Bf16>& got, const std::vector<double>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  double worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double error = std::fabs(static_cast<double>(ToFloat(got[i])) - expected[i]);
    ASSERT_LE(error, kTolerance) << "element " << i << ": " << ToFloat(got[i]) << " for "
                                 << expected[i];
    worst = std::max(worst, error);
  }
  ::testing::Test::RecordProperty("worst_error", std::to_string(worst));
}

// All group sizes, head sizes and cache types.
class AttentionShapes : public ::testing::TestWithParam<std::tuple<int32_t, int32_t, KvType>> {
 protected:
  AttentionShape Shape(int32_t kv_heads) const {
    const auto [group, dim, type] = GetParam();
    return {group * kv_heads, kv_heads, dim, type};
  }
};

// Decode at the edges of pages, tiles and splits, short prefill chunks between.
TEST_P(AttentionShapes, AgreesWithFloat64) {
  const std::vector<int32_t> lengths = {1, 15, 16, 17, 33, 64, 255, 256, 257, 290};
  const AttentionCase c(Shape(2), lengths, 7);
  std::vector<Chunk> chunks;
  for (size_t id = 0; id < lengths.size(); ++id) {
    const int32_t count = std::min(lengths[id], id % 3 == 2 ? 5 : 1);
    chunks.push_back({id, lengths[id] - count, count});
  }
  const std::vector<double> expected = c.Expected(chunks);
  ExpectNear(c.Run(chunks, kWhole), expected);
  ExpectNear(c.Run(chunks, kCut), expected);
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<int32_t, int32_t, KvType>>& each) {
  const auto [group, dim, type] = each.param;
  return "G" + std::to_string(group) + "D" + std::to_string(dim) +
         (type == KvType::kBf16 ? "bf16" : "f32");
}

// ThreadSanitizer takes a second for each, and G decides little of what threads share: one row of
// an MMA tile, a part of one, and a whole one.
#ifdef __SANITIZE_THREAD__
const auto kGroups = ::testing::Values(1, 3, 4, 16);
const auto kOtherGroups = ::testing::Values(15);
#else
const auto kGroups = ::testing::Values(1, 2, 3, 4, 5, 7, 8, 12, 16);
const auto kOtherGroups = ::testing::Values(6, 9, 10, 11, 13, 14, 15);
#endif

INSTANTIATE_TEST_SUITE_P(All, AttentionShapes,
                         ::testing::Combine(kGroups, ::testing::Values(16, 32, 64, 128),
                                            ::testing::Values(KvType::kBf16, KvType::kF32)),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(OtherGroups, AttentionShapes,
                         ::testing::Combine(kOtherGroups, ::testing::Values(32),
                                            ::testing::Values(KvType::kBf16)),
                         NameOf);

void CheckSteps(const AttentionCase& c, const std::vector<Chunk>& chunks) {
  const std::vector<double> expected = c.Expected(chunks);
  ExpectNear(c.Run(chunks, kWhole), expected);
  ExpectNear(c.Run(chunks, kCut), expected);
}

// Also past 512 keys, where the walk takes up the next page ids.
TEST(Attention, PrefillAgreesWithFloat64) {
  const AttentionCase c({6, 2, 64, KvType::kBf16}, {70, 1, 0, 300, 1300}, 11);
  CheckSteps(c, {{0, 0, 70}, {1, 0, 1}, {2, 0, 0}, {3, 240, 60}, {4, 1293, 7}});
}

// Steps that end with a split, with a window of page ids, and one key past it: of one token, of a
// few (a narrow item), and of a prompt's last chunk (wide ones).
TEST(Attention, StepsThatEndWithASplitAgreeWithFloat64) {
  for (const AttentionShape& shape :
       {AttentionShape{6, 2, 64, KvType::kBf16}, AttentionShape{3, 1, 128, KvType::kBf16},
        AttentionShape{4, 2, 32, KvType::kF32}}) {
    const AttentionCase c(shape, {256, 512, 513}, 29);
    CheckSteps(c, {{0, 255, 1}, {1, 511, 1}, {2, 512, 1}});
    CheckSteps(c, {{0, 253, 3}, {1, 509, 3}, {2, 510, 3}});
    CheckSteps(c, {{0, 216, 40}, {1, 472, 40}, {2, 473, 40}});
  }
  const AttentionCase prompts({1, 1, 16, KvType::kBf16}, {256, 257, 513}, 31);
  CheckSteps(prompts, {{0, 0, 256}, {1, 0, 257}});
  CheckSteps(prompts, {{2, 384, 129}});
}

// Three KV heads: no block begins where 32 bits end, one lies across.
TEST(Attention, PagesMayLieBeyond32Bits) {
  for (const KvType type : {KvType::kBf16, KvType::kF32}) {
    AttentionCase c({6, 3, 128, type}, {13 * 16 - 5}, 37);
    const std::vector<Chunk> step = {{0, 150, 40}, {0, 13 * 16 - 6, 1}};
    const std::vector<Bf16> near = c.Run(step, kWhole);
    ExpectNear(near, c.Expected(step));
    const FarBlocks far(c.block_bytes());
    c.MoveTo(far);
    EXPECT_EQ(BitsOf(c.Run(step, kWhole)), BitsOf(near));
  }
}

// The row at position `token` when it is computed as part of [start, start + count).
std::vector<uint16_t> RowBits(const AttentionCase& c, const std::vector<Bf16>& out, size_t row) {
  const auto begin = out.begin() + static_cast<ptrdiff_t>(row * c.row_elements());
  return BitsOf({begin, begin + static_cast<ptrdiff_t>(c.row_elements())});
}

class AttentionInvariance : public ::testing::TestWithParam<AttentionShape> {};

TEST_P(AttentionInvariance, ARowIsTheSameInAnyChunkAnyCutAndAnyGrid) {
  constexpr int32_t kLength = 530;
  const AttentionCase c(GetParam(), {kLength, 40}, 13);
  const std::vector<Bf16> whole = c.Run({{0, 480, 50}}, kWhole);
  EXPECT_EQ(BitsOf(c.Run({{0, 480, 50}}, kCut)), BitsOf(whole));
  for (int32_t chunk : {1, 3, 17}) {
    for (int32_t start = 480; start < kLength; start += chunk) {
      // Two of the chunks of one token are enough.
      if (chunk == 1 && start != 511 && start != 512) continue;
      const int32_t count = std::min(chunk, kLength - start);
      const AttentionBudget& budget = start % 2 == 0 ? kWhole : kCut;
      const std::vector<Bf16> part = c.Run({{0, start, count}}, budget);
      for (int32_t i = 0; i < count; ++i) {
        ASSERT_EQ(RowBits(c, part, static_cast<size_t>(i)),
                  RowBits(c, whole, static_cast<size_t>(start - 480 + i)))
            << "position " << start + i << " in a chunk of " << chunk;
      }
    }
  }
}

TEST_P(AttentionInvariance, ARowIsTheSameInAnyBatch) {
  const std::vector<int32_t> lengths = {300, 9, 513, 256, 31};
  const AttentionCase c(GetParam(), lengths, 17);
  const std::vector<Bf16> alone = c.Run({{2, 509, 4}}, kCut);
  const std::vector<Chunk> batch = {{0, 299, 1}, {1, 0, 9}, {3, 250, 6}, {2, 509, 4}, {4, 30, 1}};
  for (int32_t blocks : {0, 1, 3}) {
    for (const AttentionBudget& budget : {kWhole, kCut, AttentionBudget{4096, 9}}) {
      const std::vector<Bf16> out = c.Run(batch, budget, blocks);
      for (size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(RowBits(c, out, 16 + i), RowBits(c, alone, i)) << blocks << " blocks";
      }
    }
  }
}

TEST_P(AttentionInvariance, SplitsAreMergedInAscendingOrderInTheBlockAndApart) {
  AttentionCase c(GetParam(), {1100}, 23);
  c.MakeOrderMatter(0);
  const std::vector<Chunk> step = {{0, 1090, 10}};
  EXPECT_EQ(BitsOf(c.Run(step, kWhole)), BitsOf(c.Run(step, kCut)));
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionInvariance,
                         ::testing::Values(AttentionShape{3, 1, 16, KvType::kBf16},
                                           AttentionShape{8, 2, 64, KvType::kBf16},
                                           AttentionShape{5, 1, 128, KvType::kBf16},
                                           AttentionShape{4, 2, 32, KvType::kF32}));

// A graph's lists: more blocks than items, lists of no item, items of no token.
TEST(Attention, EmptyListsAndPaddingDoNothing) {
  const AttentionCase c({2, 1, 16, KvType::kBf16}, {20}, 19);
  EXPECT_EQ(BitsOf(c.Run({{0, 19, 1}}, kWhole, 7)), BitsOf(c.Run({{0, 19, 1}}, kWhole)));
  EXPECT_TRUE(c.Run({}, kCut, 2).empty());
  AttentionPlan padded;
  padded.narrow.resize(3);
  padded.wide.resize(1);
  padded.merges.resize(2);
  const DeviceLists lists(padded);
  AttentionArgs args;
  args.q_heads = 2;
  args.pages = {nullptr, KvType::kBf16, 1, 1, 16};
  args.narrow = lists.narrow.get();
  args.wide = lists.wide.get();
  args.merges = lists.merges.get();
  args.counts = lists.counts.get();
  args.narrow_blocks = args.wide_blocks = args.merge_blocks = 2;
  EXPECT_EQ(LaunchAttention(args, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
}

TEST(Attention, ShapesThatThereAreNotAreRefused) {
  EXPECT_EQ(AttentionUnsupported(128, 32, 8), "");
  EXPECT_EQ(AttentionUnsupported(16, 16, 1), "");
  AttentionArgs args;
  args.q_heads = 2;
  for (int32_t dim : {80, 96, 256}) {
    EXPECT_EQ(AttentionUnsupported(dim, 32, 8),
              "head_dim = " + std::to_string(dim) +
                  ": the CUDA attention kernel has 16, 32, 64 and 128 (80, 96 and 256 are not "
                  "there yet)");
    args.pages = {nullptr, KvType::kBf16, 1, 1, dim};
    EXPECT_EQ(LaunchAttention(args, nullptr), cudaErrorInvalidValue);
  }
  EXPECT_EQ(
      AttentionUnsupported(64, 17, 1),
      "17 query heads on 1 KV heads: the CUDA attention kernel has at most 16 query heads per "
      "KV head");
  EXPECT_EQ(AttentionUnsupported(64, 9, 2),
            "9 query heads on 2 KV heads: must be a positive "
            "multiple");
  args.pages.head_dim = 64;
  EXPECT_EQ(LaunchAttention(args, nullptr), cudaSuccess);
  args.layer = 1;
  EXPECT_EQ(LaunchAttention(args, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvern::gpu
