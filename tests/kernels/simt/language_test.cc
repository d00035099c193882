#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "tests/kernels/simt/emulated_kernel.h"

namespace kvern::simt {
namespace {

using gpu::Bf16;
using gpu::PackBf16;
using gpu::ToBf16;
using gpu::ToFloat;

constexpr uint32_t kAll = ~0u;

class LanguageTest : public WithEachFiber {};
KVERN_INSTANTIATE_FIBERS(LanguageTest);

TEST_P(LanguageTest, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(3, 2, 2);
  const dim3 block(5, 3, 4);
  std::vector<int> runs(12 * 60, 0);
  RunKernel(grid, block, [&] {
    ASSERT_EQ(gridDim.x, 3u);
    ASSERT_EQ(gridDim.y, 2u);
    ASSERT_EQ(gridDim.z, 2u);
    ASSERT_EQ(blockDim.x, 5u);
    ASSERT_EQ(blockDim.y, 3u);
    ASSERT_EQ(blockDim.z, 4u);
    unsigned flat_block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    ++runs[flat_block * 60 + FlatThread()];
  });
  EXPECT_EQ(runs, std::vector<int>(runs.size(), 1));
}

TEST_P(LanguageTest, ShapesOfFollowingLaunchesMayDiffer) {
  for (unsigned threads : {1u, 1024u, 31u, 33u, 256u, 1u}) {
    unsigned sum = 0;
    RunKernel(2, threads, [&] {
      __syncthreads();
      atomicAdd(&sum, threadIdx.x + 1);
    });
    EXPECT_EQ(sum, threads * (threads + 1));
  }
}

TEST_P(LanguageTest, SharedMemoryIsOfTheBlockAndFreshInEach) {
  std::vector<float> reversed(4 * 96);
  RunKernel(
      4, 96,
      [&] {
        KVERN_SHARED(float, line, 96);
        KVERN_SHARED(int, other, 3);
        KVERN_DYNAMIC_SHARED(double, dynamic);
        static_assert(sizeof(line) == 96 * sizeof(float));
        // Before anyone has written: every byte 0xFF, which is NaN, also in the second block.
        ASSERT_TRUE(std::isnan(line[threadIdx.x]));
        ASSERT_TRUE(std::isnan(dynamic[threadIdx.x]));
        ASSERT_EQ(other[threadIdx.x % 3], -1);
        // What needs 4 bytes gets no more: a kernel that loads 16 from here is wrong on a GPU too.
        ASSERT_EQ(reinterpret_cast<uintptr_t>(other) % 16, alignof(int));
        ASSERT_EQ(reinterpret_cast<uintptr_t>(dynamic) % 16, 0u);
        __syncthreads();
        line[threadIdx.x] = static_cast<float>(blockIdx.x * 96 + threadIdx.x);
        dynamic[threadIdx.x] = 1.0;
        if (threadIdx.x < 3) other[threadIdx.x] = 7;
        __syncthreads();
        reversed[blockIdx.x * 96 + threadIdx.x] = line[95 - threadIdx.x];
      },
      96 * sizeof(double));
  for (unsigned i = 0; i < reversed.size(); ++i) {
    EXPECT_EQ(reversed[i], static_cast<float>(i / 96 * 96 + 95 - i % 96)) << i;
  }
}

template <typename T>
void OneInstance(std::vector<const void*>& arrays) {
  KVERN_SHARED(T, array, 8);
  if (threadIdx.x == 0) arrays.push_back(array);
}

TEST_P(LanguageTest, EachSharedArrayOfEachTemplateIsItsOwn) {
  std::vector<const void*> arrays;
  RunKernel(1, 2, [&] {
    OneInstance<float>(arrays);
    OneInstance<int>(arrays);
    OneInstance<float>(arrays);
  });
  ASSERT_EQ(arrays.size(), 3u);
  EXPECT_NE(arrays[0], arrays[1]);
  EXPECT_EQ(arrays[0], arrays[2]);
}

// A thousand sums over the block: barriers that are entered again and again, by every lane first.
TEST_P(LanguageTest, BarriersCanBeRepeated) {
  unsigned long long last = 0;
  RunKernel(1, 320, [&] {
    KVERN_SHARED(unsigned, cell, 320);
    unsigned value = threadIdx.x;
    for (unsigned round = 0; round < 200; ++round) {
      cell[threadIdx.x] = value;
      __syncthreads();
      value = cell[(threadIdx.x + 1) % 320];
      __syncthreads();
    }
    ASSERT_EQ(value, (threadIdx.x + 200) % 320);
    atomicAdd(&last, 1ull);
  });
  EXPECT_EQ(last, 320u);
}

TEST_P(LanguageTest, ThreadsThatReturnedAreNotWaitedFor) {
  std::vector<int> reached(64, 0);
  RunKernel(1, 64, [&] {
    if (threadIdx.x % 3 == 0) return;
    __syncwarp();
    __syncthreads();
    float sum = __shfl_xor_sync(kAll, 1.0f, 0);
    unsigned ballot = __ballot_sync(kAll, 1);
    for (unsigned lane = 0; lane < 32; ++lane) {
      ASSERT_EQ(ballot >> lane & 1, (threadIdx.x / 32 * 32 + lane) % 3 == 0 ? 0u : 1u);
    }
    reached[threadIdx.x] = static_cast<int>(sum);
    if (threadIdx.x % 2 == 0) return;  // While the others are already in the barrier.
    __syncthreads();
    reached[threadIdx.x] = 2;
  });
  for (int i = 0; i < 64; ++i) {
    EXPECT_EQ(reached[static_cast<size_t>(i)], i % 3 == 0 ? 0 : i % 2 == 0 ? 1 : 2) << i;
  }
}

TEST_P(LanguageTest, LastLaneToReturnCompletesTheCollective) {
  int any = -1;
  RunKernel(1, 32, [&] {
    if (threadIdx.x == 31) return;  // Runs last, when all others wait.
    int result = __any_sync(kAll, threadIdx.x == 30);
    if (threadIdx.x == 0) any = result;
  });
  EXPECT_EQ(any, 1);
}

// What PTX's shfl.sync says, spelled out for one lane. Lanes outside the warp do not exist.
unsigned PlainSource(Collective op, unsigned lane, unsigned argument, unsigned width) {
  unsigned start = lane / width * width;
  if (op == Collective::kShuffle) return start + argument % width;
  unsigned source = op == Collective::kShuffleXor ? lane ^ argument : lane + argument;
  return source < start + width ? source : lane;
}

TEST_P(LanguageTest, ShufflesOfEveryWidth) {
  for (unsigned width : {1u, 2u, 4u, 8u, 16u, 32u}) {
    for (unsigned argument = 0; argument < 32; ++argument) {
      RunKernel(1, 64, [&] {
        unsigned lane = threadIdx.x % 32;
        float value = static_cast<float>(threadIdx.x) + 0.5f;
        float first = static_cast<float>(threadIdx.x - lane) + 0.5f;
        auto expected = [&](Collective op) {
          return first + static_cast<float>(PlainSource(op, lane, argument, width));
        };
        ASSERT_EQ(__shfl_sync(kAll, value, argument, width), expected(Collective::kShuffle));
        ASSERT_EQ(__shfl_xor_sync(kAll, value, argument, width), expected(Collective::kShuffleXor));
        ASSERT_EQ(__shfl_down_sync(kAll, value, argument, width),
                  expected(Collective::kShuffleDown));
      });
    }
  }
}

TEST_P(LanguageTest, ShufflesOfEveryType) {
  RunKernel(1, 32, [] {
    unsigned lane = threadIdx.x;
    unsigned next = (lane + 1) % 32;
    ASSERT_EQ(__shfl_sync(kAll, -static_cast<int>(lane), next), -static_cast<int>(next));
    ASSERT_EQ(__shfl_sync(kAll, lane + 0xfffffff0u, next), next + 0xfffffff0u);
    ASSERT_EQ(__shfl_sync(kAll, 1.0 / lane, next), 1.0 / next);
    ASSERT_EQ(__shfl_sync(kAll, -1ll * lane << 40, next), -1ll * next << 40);
    ASSERT_EQ(__shfl_sync(kAll, 1ull * lane << 40, next), 1ull * next << 40);
  });
}

TEST_P(LanguageTest, LaneThatTakesNoPartOffersNaN) {
  RunKernel(1, 32, [] {
    if (threadIdx.x >= 16) return;
    ASSERT_TRUE(std::isnan(__shfl_sync(kAll, 1.0f, 20)));
    ASSERT_TRUE(std::isnan(__shfl_xor_sync(0xffffu, 1.0f, 16)));
  });
}

TEST_P(LanguageTest, HalvesOfAWarpWithTheirOwnMasks) {
  RunKernel(1, 32, [] {
    bool upper = threadIdx.x >= 16;
    // One half takes many more turns than the other: they must not wait for each other.
    unsigned mask = upper ? 0xffff0000u : 0x0000ffffu;
    unsigned sum = 0;
    for (int round = 0; round < (upper ? 50 : 3); ++round) {
      sum += __shfl_xor_sync(mask, threadIdx.x, 1);
      __syncwarp(mask);
    }
    ASSERT_EQ(sum, (threadIdx.x ^ 1) * (upper ? 50u : 3u));
    ASSERT_EQ(__ballot_sync(mask, threadIdx.x % 2), mask & 0xaaaaaaaau);
    ASSERT_EQ(__all_sync(mask, threadIdx.x < 16), upper ? 0 : 1);
    ASSERT_EQ(__any_sync(mask, threadIdx.x < 16), upper ? 0 : 1);
    ASSERT_EQ(__all_sync(kAll, 1), 1);
  });
}

// A lane may wait for all while others first finish something among themselves.
TEST_P(LanguageTest, CollectivesOfFewerLanesGoOnWhileOthersWaitForAll) {
  RunKernel(1, 32, [] {
    if (threadIdx.x < 4) {
      ASSERT_EQ(__ballot_sync(0xfu, 1), 0xfu);
      __syncwarp(0xfu);
    }
    ASSERT_EQ(__ballot_sync(kAll, threadIdx.x < 8), 0xffu);
  });
}

TEST_P(LanguageTest, Votes) {
  for (uint32_t votes : {0u, 1u, 0x80000000u, 0x00ff00ffu, kAll}) {
    RunKernel(1, 32, [&] {
      uint32_t vote = votes >> threadIdx.x & 1;
      ASSERT_EQ(__ballot_sync(kAll, vote), votes);
      ASSERT_EQ(__any_sync(kAll, vote), votes != 0 ? 1 : 0);
      ASSERT_EQ(__all_sync(kAll, vote), votes == kAll ? 1 : 0);
    });
  }
}

TEST_P(LanguageTest, AtomicsReturnWhatWasThereBefore) {
  int sum = 5;
  unsigned maximum = 3;
  int lowest = -100;
  unsigned long long owner = 0;
  float total = 0;
  float exchanged = 1.5f;
  std::vector<int> before(128);
  RunKernel(2, 64, [&] {
    before[blockIdx.x * 64 + threadIdx.x] = atomicAdd(&sum, 2);
    atomicMax(&maximum, threadIdx.x);
    atomicMax(&lowest, -static_cast<int>(threadIdx.x) - 1);
    atomicAdd(&total, 0.25f);
    if (blockIdx.x == 1 && threadIdx.x == 7) {
      ASSERT_EQ(atomicCAS(&owner, 0ull, 42ull), 0ull);
      ASSERT_EQ(atomicCAS(&owner, 0ull, 43ull), 42ull);
      ASSERT_EQ(atomicExch(&exchanged, 2.5f), 1.5f);
    }
  });
  EXPECT_EQ(sum, 5 + 2 * 128);
  std::sort(before.begin(), before.end());
  for (size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i], 5 + 2 * static_cast<int>(i));
  EXPECT_EQ(maximum, 63u);
  EXPECT_EQ(lowest, -1);
  EXPECT_EQ(owner, 42u);
  EXPECT_EQ(total, 32.0f);
  EXPECT_EQ(exchanged, 2.5f);
}

// The nearest of all bf16 values by exhaustive comparison with the two neighbours.
TEST(Bf16Test, RoundsToNearestEven) {
  for (uint32_t high = 0; high < 0x7f80; ++high) {
    for (uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      float value = std::bit_cast<float>(high << 16 | low);
      bool up = low > 0x8000 || (low == 0x8000 && high % 2 == 1);
      ASSERT_EQ(ToBf16(value).bits, high + (up ? 1 : 0)) << high << " " << low;
      ASSERT_EQ(ToBf16(-value).bits, (high + (up ? 1 : 0)) | 0x8000) << high << " " << low;
    }
  }
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  EXPECT_EQ(ToFloat(ToBf16(kInfinity)), kInfinity);
  EXPECT_EQ(ToFloat(ToBf16(-kInfinity)), -kInfinity);
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_TRUE(std::isnan(ToFloat(ToBf16(std::bit_cast<float>(0xffffffffu)))));
  EXPECT_EQ(PackBf16(1.0f, -2.0f), 0xc0003f80u);
}

}  // namespace
}  // namespace kvern::simt
