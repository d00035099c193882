#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/kernels/simt/emulated_kernel.h"

namespace kvern::simt {
namespace {

using gpu::Bf16;
using gpu::CpAsync16;
using gpu::CpAsyncCommit;
using gpu::CpAsyncWait;
using gpu::LdMatrixX4;
using gpu::LdMatrixX4Trans;
using gpu::Load16;
using gpu::MmaBf16;
using gpu::Store16;
using gpu::ToBf16;
using gpu::ToFloat;
using gpu::Vec16;

class MemoryTest : public WithEachFiber {};
KVERN_INSTANTIATE_FIBERS(MemoryTest);

struct alignas(16) Four {
  float value[4];
};

TEST_P(MemoryTest, AsyncCopyLandsInItsWaitAndNotBefore) {
  const Four source = {{1, 2, 3, 4}};
  RunKernel(1, 1, [&] {
    KVERN_SHARED(Four, target, 1);
    target[0] = {{9, 9, 9, 9}};
    CpAsync16(target, &source, true);
    ASSERT_TRUE(std::isnan(target[0].value[0]));
    CpAsyncWait<0>();  // Not committed: waits for nothing, as on a GPU.
    ASSERT_TRUE(std::isnan(target[0].value[3]));
    CpAsyncCommit();
    ASSERT_TRUE(std::isnan(target[0].value[0]));
    CpAsyncWait<0>();
    for (int i = 0; i < 4; ++i) ASSERT_EQ(target[0].value[i], static_cast<float>(i + 1));
  });
}

TEST_P(MemoryTest, AsyncCopyThatIsNotValidIsZerosAndReadsNothing) {
  RunKernel(1, 1, [] {
    KVERN_SHARED(Four, target, 1);
    CpAsync16(target, nullptr, false);
    ASSERT_TRUE(std::isnan(target[0].value[0]));
    CpAsyncCommit();
    CpAsyncWait<0>();
    for (float value : target[0].value) ASSERT_EQ(value, 0.0f);
  });
}

// Three stages of a pipeline: waiting for all but the newest two groups completes just the oldest.
TEST_P(MemoryTest, GroupsCompleteInOrder) {
  std::vector<Four> source(6);
  for (size_t i = 0; i < 6; ++i) source[i].value[0] = static_cast<float>(i);
  RunKernel(
      1, 32,
      [&] {
        KVERN_DYNAMIC_SHARED(Four, stages);
        Four* own = stages + threadIdx.x * 6;
        for (size_t i = 0; i < 5; ++i) {
          CpAsync16(own + i, &source[i], true);
          if (i != 1) CpAsyncCommit();  // Groups: {0}, {1, 2}, {3}, {4}.
        }
        auto landed = [&] {
          unsigned bits = 0;
          for (unsigned i = 0; i < 5; ++i) {
            if (own[i].value[0] == static_cast<float>(i)) bits |= 1u << i;
          }
          return bits;
        };
        CpAsyncWait<4>();
        ASSERT_EQ(landed(), 0u);
        CpAsyncWait<3>();
        ASSERT_EQ(landed(), 0b1u);
        CpAsyncWait<2>();
        ASSERT_EQ(landed(), 0b111u);
        CpAsyncCommit();  // An empty group counts too.
        CpAsyncWait<2>();
        ASSERT_EQ(landed(), 0b1111u);
        CpAsyncWait<0>();
        ASSERT_EQ(landed(), 0b11111u);
      },
      32 * 6 * sizeof(Four));
}

TEST_P(MemoryTest, CopiesOfABlockThatReturnedDoNotLandInTheNext) {
  const Four source = {{1, 2, 3, 4}};
  RunKernel(2, 1, [&] {
    KVERN_SHARED(Four, target, 1);
    if (blockIdx.x == 0) {
      CpAsync16(target, &source, true);
      CpAsyncCommit();
      return;
    }
    CpAsyncCommit();
    CpAsyncWait<0>();
    ASSERT_TRUE(std::isnan(target[0].value[0]));
  });
}

// What different threads of two blocks do to the same bytes of the emulator's is no race.
TEST_P(MemoryTest, BlocksDoNotShareMemory) {
  RunKernel(2, 32, [] {
    KVERN_SHARED(unsigned, line, 32);
    unsigned own = blockIdx.x == 0 ? threadIdx.x : threadIdx.x ^ 1;
    line[own] = own;
    ASSERT_EQ(line[own], own);
  });
}

TEST_P(MemoryTest, VectorsAreCopiedWhole) {
  const Vec16 source = {{1, 2, 3, 0xffffffffu}};
  Vec16 target = {};
  RunKernel(1, 1, [&] { Store16(&target, Load16(&source)); });
  EXPECT_EQ(std::memcmp(&source, &target, 16), 0);
}

// Matrix i, row r, column c holds 1000 i + 10 r + c, for all four matrices of 8 x 8.
TEST_P(MemoryTest, LdMatrixHandsOutRowsAndColumns) {
  RunKernel(
      1, 64,
      [] {
        KVERN_DYNAMIC_SHARED(uint16_t, matrices);
        unsigned lane = threadIdx.x % 32;
        uint16_t* own_row = matrices + threadIdx.x * 8;
        for (unsigned c = 0; c < 8; ++c) {
          own_row[c] = static_cast<uint16_t>(1000 * (lane / 8) + 10 * (lane % 8) + c);
        }
        __syncwarp();
        uint32_t straight[4];
        uint32_t transposed[4];
        LdMatrixX4(straight, own_row);
        LdMatrixX4Trans(transposed, own_row);
        for (unsigned i = 0; i < 4; ++i) {
          unsigned r = lane / 4;
          unsigned c = lane % 4 * 2;
          ASSERT_EQ(straight[i] & 0xffff, 1000 * i + 10 * r + c);
          ASSERT_EQ(straight[i] >> 16, 1000 * i + 10 * r + c + 1);
          ASSERT_EQ(transposed[i] & 0xffff, 1000 * i + 10 * c + r);
          ASSERT_EQ(transposed[i] >> 16, 1000 * i + 10 * (c + 1) + r);
        }
      },
      64 * 16);
}

struct MmaCase {
  float a[16][16];
  float b[16][8];
  float d[16][8];
};

MmaCase RandomCase(unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  MmaCase mma;
  for (auto& row : mma.a) {
    for (float& value : row) value = ToFloat(ToBf16(normal(random)));
  }
  for (auto& row : mma.b) {
    for (float& value : row) value = ToFloat(ToBf16(normal(random)));
  }
  for (auto& row : mma.d) {
    for (float& value : row) value = normal(random);
  }
  return mma;
}

// Both operands through shared memory and ldmatrix, as kernels do it: A [m][k], B as [n][k].
void MmaThroughShared(MmaCase& mma) {
  KVERN_SHARED(Vec16, chunks_a, 16 * 2);
  KVERN_SHARED(Vec16, chunks_b, 16 * 2);  // The second half is there to make a whole x4 load.
  Bf16* a = reinterpret_cast<Bf16*>(chunks_a);
  Bf16* b = reinterpret_cast<Bf16*>(chunks_b);
  unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) {
    a[i] = ToBf16(mma.a[i / 16][i % 16]);
    b[i] = ToBf16(mma.b[i % 16][i / 16 % 8]);
  }
  __syncwarp();
  uint32_t fragment_a[4];
  uint32_t fragment_b[4];
  LdMatrixX4(fragment_a, &a[lane % 16 * 16 + lane / 16 * 8]);
  LdMatrixX4(fragment_b, &b[lane % 8 * 16 + lane / 8 % 2 * 8]);
  const uint32_t pair_b[2] = {fragment_b[0], fragment_b[1]};
  float d[4];
  for (unsigned i = 0; i < 4; ++i) d[i] = mma.d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  MmaBf16(d, fragment_a, pair_b);
  for (unsigned i = 0; i < 4; ++i) mma.d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2] = d[i];
}

TEST_P(MemoryTest, MmaIsTheMatrixProduct) {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const MmaCase before = RandomCase(seed);
    MmaCase after = before;
    RunKernel(1, 32, [&] { MmaThroughShared(after); });
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 8; ++n) {
        double sum = static_cast<double>(before.d[m][n]);
        double magnitude = std::abs(sum);
        for (int k = 0; k < 16; ++k) {
          double product =
              static_cast<double>(before.a[m][k]) * static_cast<double>(before.b[k][n]);
          sum += product;
          magnitude += std::abs(product);
        }
        // 16 additions, each rounded to float32.
        ASSERT_NEAR(static_cast<double>(after.d[m][n]), sum, 16 * 0x1p-24 * magnitude);
      }
    }
  }
}

}  // namespace
}  // namespace kvern::simt
