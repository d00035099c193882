// The kernels that work on rows and KV blocks, against float64 and against a row alone.
#include "kernels/reference/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "kernels/cuda/launch.h"
#include "tests/kernels/cuda/device_memory.h"

namespace kvern::gpu {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr double kHalfUlp = 0x1p-8;  // of bf16, relative

void ExpectBf16(Bf16 got, double expected, double slack = 1e-6) {
  EXPECT_NEAR(static_cast<double>(ToFloat(got)), expected, std::fabs(expected) * kHalfUlp + slack);
}

template <typename T>
std::vector<T> Slice(const std::vector<T>& values, size_t begin, size_t count) {
  const auto first = values.begin() + static_cast<ptrdiff_t>(begin);
  return {first, first + static_cast<ptrdiff_t>(count)};
}

TEST(CudaRows, EmbedReadsItsShardAndZeroesTheRest) {
  constexpr int32_t kHidden = 1032;  // more than one block of columns
  Rng rng(1);
  const std::vector<Bf16> table = Rounded(RandomRow(rng, 5 * kHidden, 1));
  const DeviceArray<Bf16> device_table(table);
  const std::vector<uint32_t> tokens = {100, 104, 99, 105, 102, 4294967295u};
  const DeviceArray<uint32_t> device_tokens(tokens);
  const DeviceArray<float> out(tokens.size() * kHidden, kNan);
  const EmbedArgs args = {device_tokens.get(), device_table.get(), 100, 5, 6, kHidden, out.get()};
  ASSERT_EQ(LaunchEmbed(args, nullptr), cudaSuccess);
  const std::vector<float> got = out.Read();
  for (size_t i = 0; i < got.size(); ++i) {
    const int64_t row = static_cast<int64_t>(tokens[i / kHidden]) - 100;
    const bool here = row >= 0 && row < 5;
    const float expected =
        here ? ToFloat(table[static_cast<size_t>(row) * kHidden + i % kHidden]) : 0;
    ASSERT_EQ(got[i], expected) << i;
  }
}

std::vector<Bf16> Norm(const std::vector<float>& x, const std::vector<float>& delta,
                       const std::vector<float>& weight, std::vector<float>* summed) {
  const auto cols = static_cast<int32_t>(weight.size());
  const DeviceArray<float> device_x(x);
  const DeviceArray<float> device_delta(delta);
  const DeviceArray<float> device_weight(weight);
  const DeviceArray<Bf16> out(x.size(), Bf16{0x7fff});
  RmsNormArgs args = {
      device_x.get(), delta.empty() ? nullptr : device_delta.get(), device_weight.get(),
      1e-5f,          static_cast<int32_t>(x.size()) / cols,        cols,
      out.get()};
  EXPECT_EQ(LaunchRmsNorm(args, nullptr), cudaSuccess);
  std::vector<Bf16> result = out.Read();
  *summed = device_x.Read();
  return result;
}

// Each number of steps per thread, full and with a rest.
class CudaRmsNorm : public ::testing::TestWithParam<int32_t> {};

TEST_P(CudaRmsNorm, AgreesWithFloat64AndWithARowAlone) {
  const auto cols = static_cast<size_t>(GetParam());
  constexpr size_t kRows = 3;
  Rng rng(2);
  const std::vector<float> x = RandomRow(rng, kRows * cols, 2);
  const std::vector<float> weight = RandomRow(rng, cols, 1);
  for (const std::vector<float>& delta : {std::vector<float>(), RandomRow(rng, kRows * cols, 1)}) {
    std::vector<float> summed;
    const std::vector<Bf16> got = Norm(x, delta, weight, &summed);
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(summed[i], delta.empty() ? x[i] : x[i] + delta[i]);
    }
    for (size_t row = 0; row < kRows; ++row) {
      const std::vector<float> own = Slice(summed, row * cols, cols);
      const std::vector<double> expected =
          reference::RmsNorm({own.begin(), own.end()}, weight, static_cast<double>(1e-5f));
      for (size_t i = 0; i < cols; ++i) ExpectBf16(got[row * cols + i], expected[i]);
      std::vector<float> unused;
      const std::vector<float> own_delta = delta.empty() ? delta : Slice(delta, row * cols, cols);
      EXPECT_EQ(BitsOf(Norm(Slice(x, row * cols, cols), own_delta, weight, &unused)),
                BitsOf(Slice(got, row * cols, cols)));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Columns, CudaRmsNorm,
                         ::testing::Values(8, 64, 264, 2048, 2056, 4096, 8184, 16384));

TEST(CudaRows, SwiGlu) {
  constexpr size_t kRows = 2;
  constexpr size_t kColumns = 1048;
  Rng rng(3);
  std::vector<float> gate_up = Widened(Rounded(RandomRow(rng, kRows * 2 * kColumns, 8)));
  gate_up[0] = -200;  // e^200 is no float
  const DeviceArray<Bf16> in(Rounded(gate_up));
  const DeviceArray<Bf16> out(kRows * kColumns, Bf16{0x7fff});
  ASSERT_EQ(LaunchSwiGlu({in.get(), out.get(), kRows, kColumns}, nullptr), cudaSuccess);
  const std::vector<Bf16> got = out.Read();
  for (size_t i = 0; i < got.size(); ++i) {
    const size_t at = i / kColumns * 2 * kColumns + i % kColumns;
    ExpectBf16(got[i], reference::SwiGlu(static_cast<double>(gate_up[at]),
                                         static_cast<double>(gate_up[at + kColumns])));
  }
}

TEST(CudaRows, GatherRows) {
  constexpr size_t kCols = 516;
  Rng rng(5);
  const std::vector<float> x = RandomRow(rng, 4 * kCols, 1);
  const DeviceArray<float> device_x(x);
  const DeviceArray<int32_t> index({3, 0, 3});
  const DeviceArray<float> out(3 * kCols, kNan);
  ASSERT_EQ(LaunchGatherRows({device_x.get(), index.get(), 3, kCols, out.get()}, nullptr),
            cudaSuccess);
  const std::vector<float> got = out.Read();
  EXPECT_EQ(Slice(got, 0, kCols), Slice(x, 3 * kCols, kCols));
  EXPECT_EQ(Slice(got, kCols, kCols), Slice(x, 0, kCols));
  EXPECT_EQ(Slice(got, 2 * kCols, kCols), Slice(x, 3 * kCols, kCols));
}

TEST(CudaRows, ToBf16RoundsToEvenAndKeepsNan) {
  for (size_t count : {0u, 1u, 7u, 8u, 1027u}) {
    Rng rng(6);
    std::vector<float> x = RandomRow(rng, count, 4);
    if (count > 7) {
      x[1] = kNan;
      x[2] = std::bit_cast<float>(0x3f808000u);  // a tie, down to even
      x[3] = std::bit_cast<float>(0x3f818000u);  // a tie, up to even
      x[4] = std::numeric_limits<float>::infinity();
    }
    const DeviceArray<float> in(x);
    const DeviceArray<Bf16> out(count, Bf16{0x1234});
    ASSERT_EQ(LaunchToBf16({in.get(), out.get(), static_cast<int64_t>(count)}, nullptr),
              cudaSuccess);
    EXPECT_EQ(BitsOf(out.Read()), BitsOf(Rounded(x)));
    if (count > 7) {
      EXPECT_EQ(out.Read()[2].bits, 0x3f80);
      EXPECT_EQ(out.Read()[3].bits, 0x3f82);
      EXPECT_TRUE(std::isnan(ToFloat(out.Read()[1])));
    }
  }
}

TEST(CudaRows, AddOrderedAddsInRankOrder) {
  constexpr size_t kCount = 516;
  Rng rng(7);
  for (int32_t ranks : {1, 2, 5, 8}) {
    // Magnitudes apart, so that another order gives other bits.
    std::vector<float> in;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      for (float x : RandomRow(rng, kCount, std::exp2(static_cast<float>(rank % 3 * 6)))) {
        in.push_back(x);
      }
    }
    const DeviceArray<float> device(in);
    ASSERT_EQ(LaunchAddOrdered({device.get(), ranks, kCount, device.get()}, nullptr), cudaSuccess);
    const std::vector<float> got = Slice(device.Read(), 0, kCount);
    for (size_t i = 0; i < kCount; ++i) {
      float expected = in[i];
      for (size_t rank = 1; rank < static_cast<size_t>(ranks); ++rank) {
        expected += in[rank * kCount + i];
      }
      EXPECT_EQ(got[i], expected);
    }
  }
}

TEST(CudaRows, CopyBlocksCopiesWholeBlocksAndNothingElse) {
  constexpr size_t kBlockFloats = 5000;  // more than one block of threads, with a rest
  Rng rng(8);
  const std::vector<float> before = RandomRow(rng, 5 * kBlockFloats, 1);
  const DeviceArray<float> cache(before);
  const DeviceArray<BlockPair> pairs({{4, 1}, {0, 3}});
  ASSERT_EQ(LaunchCopyBlocks({cache.get(), kBlockFloats * 4, pairs.get(), 2}, nullptr),
            cudaSuccess);
  const std::vector<float> after = cache.Read();
  const size_t source[] = {0, 4, 2, 0, 4};
  for (size_t block = 0; block < 5; ++block) {
    EXPECT_EQ(Slice(after, block * kBlockFloats, kBlockFloats),
              Slice(before, source[block] * kBlockFloats, kBlockFloats))
        << block;
  }
}

TEST(CudaRows, CopiedBlocksMayLieBeyond32Bits) {
  constexpr size_t kBlockFloats = 5000;
  const FarBlocks cache(kBlockFloats * 4);
  const size_t blocks = cache.ids().size();
  Rng rng(10);
  std::vector<std::vector<float>> expected;
  std::vector<BlockPair> pairs;
  for (size_t i = 0; i < blocks; ++i) {
    expected.push_back(RandomRow(rng, kBlockFloats, 1));
    cache.Write(i, expected[i].data());
  }
  for (size_t i = 0; i < blocks / 2; ++i) {  // every other one upwards
    const size_t from = i % 2 == 0 ? i : blocks - 1 - i;
    const size_t to = blocks - 1 - from;
    pairs.push_back({cache.ids()[from], cache.ids()[to]});
    expected[to] = expected[from];
  }
  const DeviceArray<BlockPair> device_pairs(pairs);
  ASSERT_EQ(LaunchCopyBlocks({cache.get(), kBlockFloats * 4, device_pairs.get(),
                              static_cast<int32_t>(pairs.size())},
                             nullptr),
            cudaSuccess);
  for (size_t i = 0; i < blocks; ++i) {
    std::vector<float> got(kBlockFloats);
    cache.Read(i, got.data());
    EXPECT_EQ(got, expected[i]) << "block " << cache.ids()[i];
  }
}

struct RopeShape {
  int32_t q_heads;
  int32_t kv_heads;
  int32_t dim;
};

// What goes in, and what the kernel leaves.
struct RopeRun {
  static constexpr int32_t kLayers = 3;
  static constexpr int32_t kLayer = 2;
  static constexpr uint32_t kPositions = 40;

  RopeShape shape;
  size_t width;  // of a row of qkv
  std::vector<float> qkv, cos, sin;
  std::vector<uint32_t> positions;
  std::vector<Bf16> q;
  std::vector<float> cache;
};

size_t BlockElements(const RopeShape& shape) {
  return static_cast<size_t>(RopeRun::kLayers * 2 * shape.kv_heads * 16 * shape.dim);
}

// The blocks that `slots` need lie in `far`, the first as its first, if there is one.
template <typename Kv>
RopeRun RunRope(const RopeShape& shape, std::vector<int64_t> slots,
                const FarBlocks* far = nullptr) {
  RopeRun run;
  run.shape = shape;
  run.width = static_cast<size_t>((shape.q_heads + 2 * shape.kv_heads) * shape.dim);
  Rng rng(9);
  run.qkv = RandomRow(rng, slots.size() * run.width, 2);
  for (uint32_t t = 0; t < slots.size(); ++t) {
    run.positions.push_back((t * 7 + 3) % RopeRun::kPositions);
  }
  const auto angles = RopeRun::kPositions * static_cast<size_t>(shape.dim) / 2;
  run.cos = RandomRow(rng, angles, 1);
  run.sin = RandomRow(rng, angles, 1);
  const DeviceArray<float> qkv(run.qkv);
  const DeviceArray<Bf16> q(slots.size() * static_cast<size_t>(shape.q_heads * shape.dim), Bf16{});
  const DeviceArray<uint32_t> positions(run.positions);
  const DeviceArray<float> cos(run.cos), sin(run.sin);
  const auto blocks = static_cast<size_t>(*std::max_element(slots.begin(), slots.end()) / 16 + 1);
  std::vector<Kv> cache(blocks * BlockElements(shape), Kv{});
  for (size_t i = 0; far != nullptr && i < blocks; ++i) {
    far->Write(i, &cache[i * BlockElements(shape)]);
  }
  const DeviceArray<Kv> near(cache);
  for (int64_t& slot : slots) {
    if (far != nullptr) slot = far->ids()[static_cast<size_t>(slot / 16)] * int64_t{16} + slot % 16;
  }
  const DeviceArray<int64_t> device_slots(slots);
  RopeAndStoreKvArgs args;
  args.qkv = qkv.get();
  args.q = q.get();
  args.positions = positions.get();
  args.slots = device_slots.get();
  args.cos = cos.get();
  args.sin = sin.get();
  args.rows = static_cast<int32_t>(slots.size());
  args.q_heads = shape.q_heads;
  args.layer = RopeRun::kLayer;
  args.pages = {near.get(), sizeof(Kv) == 2 ? KvType::kBf16 : KvType::kF32, RopeRun::kLayers,
                shape.kv_heads, shape.dim};
  if (far != nullptr) args.pages.data = far->get();
  EXPECT_EQ(LaunchRopeAndStoreKv(args, nullptr), cudaSuccess);
  run.q = q.Read();
  EXPECT_EQ(qkv.Read(), run.qkv);
  cache = near.Read();
  for (size_t i = 0; far != nullptr && i < blocks; ++i) {
    far->Read(i, &cache[i * BlockElements(shape)]);
  }
  if constexpr (sizeof(Kv) == 2) {
    run.cache = Widened(cache);
  } else {
    run.cache = cache;
  }
  return run;
}

// Head `head` of token t in float64, rotated unless it is a value.
std::vector<double> ExpectedHead(const RopeRun& run, size_t t, size_t head) {
  const auto dim = static_cast<size_t>(run.shape.dim);
  const std::vector<float> row = Slice(run.qkv, t * run.width + head * dim, dim);
  if (head >= static_cast<size_t>(run.shape.q_heads + run.shape.kv_heads)) {
    return {row.begin(), row.end()};
  }
  const std::vector<float> c = Slice(run.cos, run.positions[t] * dim / 2, dim / 2);
  const std::vector<float> s = Slice(run.sin, run.positions[t] * dim / 2, dim / 2);
  return reference::Rope({row.begin(), row.end()}, {c.begin(), c.end()}, {s.begin(), s.end()});
}

template <typename Kv>
void CheckRope(const RopeShape& shape, const std::vector<int64_t>& slots,
               const FarBlocks* far = nullptr) {
  const RopeRun run = RunRope<Kv>(shape, slots, far);
  const auto dim = static_cast<size_t>(shape.dim);
  const auto q_heads = static_cast<size_t>(shape.q_heads);
  const auto kv_heads = static_cast<size_t>(shape.kv_heads);
  std::vector<double> cache(run.cache.size());  // zero where no slot points
  for (size_t t = 0; t < slots.size(); ++t) {
    for (size_t head = 0; head < q_heads + 2 * kv_heads; ++head) {
      const std::vector<double> expected = ExpectedHead(run, t, head);
      if (head < q_heads) {
        const size_t at = (t * q_heads + head) * dim;
        for (size_t i = 0; i < dim; ++i) ExpectBf16(run.q[at + i], expected[i]);
        continue;
      }
      if (slots[t] < 0) continue;
      const auto slot = static_cast<size_t>(slots[t]);
      const size_t kv = head >= q_heads + kv_heads ? 1 : 0;
      const size_t place = ((slot / 16 * RopeRun::kLayers + RopeRun::kLayer) * 2 + kv) * kv_heads +
                           (head - q_heads) % kv_heads;
      std::copy(expected.begin(), expected.end(),
                cache.begin() + static_cast<ptrdiff_t>((place * 16 + slot % 16) * dim));
    }
  }
  const double relative = sizeof(Kv) == 2 ? kHalfUlp : 1e-6;
  for (size_t i = 0; i < cache.size(); ++i) {
    ASSERT_NEAR(static_cast<double>(run.cache[i]), cache[i], std::fabs(cache[i]) * relative + 1e-6)
        << i;
  }
}

TEST(CudaRows, RopeRotatesAndStoresWhereTheSlotsSay) {
  for (const RopeShape& shape :
       {RopeShape{2, 1, 16}, RopeShape{3, 3, 32}, RopeShape{8, 2, 64}, RopeShape{16, 1, 128}}) {
    CheckRope<Bf16>(shape, {17, 0, -1, 63, 31});
    CheckRope<float>(shape, {17, 0, -1, 63, 31});
  }
}

template <typename Kv>
void CheckFarRope() {
  const RopeShape shape = {2, 3, 128};  // a block lies across the end of 32 bits
  const FarBlocks far(BlockElements(shape) * sizeof(Kv));
  std::vector<int64_t> slots;
  for (size_t i = 0; i < far.ids().size(); ++i) slots.push_back(static_cast<int64_t>(17 * i));
  CheckRope<Kv>(shape, slots, &far);
}

TEST(CudaRows, RopeStoresBeyond32Bits) {
  CheckFarRope<Bf16>();
  CheckFarRope<float>();
}

TEST(CudaRows, ShapesThatCommentsExcludeAreRefusedAndNoRowsAreNothing) {
  EXPECT_EQ(LaunchEmbed({nullptr, nullptr, 0, 0, 1, 12, nullptr}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchEmbed({nullptr, nullptr, 0, 0, 0, 16, nullptr}, nullptr), cudaSuccess);
  RmsNormArgs norm;
  norm.cols = kMaxNormColumns + 8;
  EXPECT_EQ(LaunchRmsNorm(norm, nullptr), cudaErrorInvalidValue);
  norm.cols = 64;
  EXPECT_EQ(LaunchRmsNorm(norm, nullptr), cudaSuccess);
  EXPECT_EQ(LaunchSwiGlu({nullptr, nullptr, 1, 9}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchGatherRows({nullptr, nullptr, 1, 6, nullptr}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchToBf16({nullptr, nullptr, -1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchAddOrdered({nullptr, 0, 4, nullptr}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCopyBlocks({nullptr, 24, nullptr, 1}, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchCopyBlocks({nullptr, 32, nullptr, 0}, nullptr), cudaSuccess);
  RopeAndStoreKvArgs rope;
  rope.q_heads = 1;
  rope.pages = {nullptr, KvType::kBf16, 1, 1, 24};
  EXPECT_EQ(LaunchRopeAndStoreKv(rope, nullptr), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace kvern::gpu
