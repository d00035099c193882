// Products with one algorithm for all row counts, by a cuBLASLt that promises nothing: on an
// emulated GPU it would rather split K, and not every algorithm takes every number of rows.
#include "worker/device/cuda/cuda_matmul.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <vector>

#include "kernels/simt/runtime/enqueue.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/cuda/cuda_memory.h"

namespace kvern {
namespace {

constexpr int64_t kN = 24;
constexpr int64_t kK = 96;
constexpr int64_t kMaxRows = 1100;

// Numbers between -1 and 1 that are no multiples of each other, so that the order of sums shows.
std::vector<uint16_t> Bf16Numbers(size_t count) {
  std::vector<uint16_t> values(count);
  for (size_t i = 0; i < count; ++i) {
    const float value = static_cast<float>((i * 7919) % 2003) / 1001.0f - 1.0f;
    values[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
  }
  return values;
}

class CudaMatMulTest : public testing::Test {
 protected:
  void SetUp() override {
    auto context = CudaContext::Open(0);
    ASSERT_TRUE(context.ok()) << context.status();
    context_ = *std::move(context);
    arena_ = std::make_unique<DeviceArena>(*context_);
  }
  void TearDown() override { simt::AlwaysSplitProducts(0, false); }

  std::unique_ptr<CudaMatMul> Create(bool pinned) {
    auto matmul = CudaMatMul::Create(*context_, *arena_, pinned);
    EXPECT_TRUE(matmul.ok()) << matmul.status();
    weight_ = *arena_->LayOut(kN * kK * sizeof(uint16_t));
    x_ = *arena_->LayOut(kMaxRows * kK * sizeof(uint16_t));
    out_ = *arena_->LayOut(kMaxRows * kN * sizeof(float));
    EXPECT_TRUE(arena_->Commit().ok());
    Fill(weight_, Bf16Numbers(kN * kK));
    Fill(x_, Bf16Numbers(kMaxRows * kK));
    return *std::move(matmul);
  }
  static void Fill(const DeviceMemory& memory, const std::vector<uint16_t>& values) {
    EXPECT_EQ(cudaMemcpy(memory.data(), values.data(), values.size() * sizeof(uint16_t),
                         cudaMemcpyHostToDevice),
              cudaSuccess);
  }

  absl::Status Multiply(CudaMatMul& matmul, int64_t rows) {
    return matmul.Multiply({x_.data(), DType::kBf16, rows, kK, kK}, weight_.data(), nullptr,
                           {out_.data(), DType::kF32, rows, kN, kN});
  }
  // The first of the `rows` of a product.
  std::vector<float> FirstRow(CudaMatMul& matmul, int64_t rows) {
    const absl::Status multiplied = Multiply(matmul, rows);
    EXPECT_TRUE(multiplied.ok()) << rows << " rows: " << multiplied;
    EXPECT_TRUE(context_->Wait().ok());
    std::vector<float> row(kN);
    EXPECT_EQ(
        cudaMemcpy(row.data(), out_.data(), row.size() * sizeof(float), cudaMemcpyDeviceToHost),
        cudaSuccess);
    return row;
  }

  std::unique_ptr<CudaContext> context_;
  std::unique_ptr<DeviceArena> arena_;
  DeviceMemory weight_, x_, out_;
};

TEST_F(CudaMatMulTest, APinnedProductServesEveryNumberOfRowsWithTheSameBits) {
  auto matmul = Create(true);
  const std::vector<float> alone = FirstRow(*matmul, 1);
  for (int64_t rows : {2, 3, 8, 17, 63, 64, 65, 200, 512, 513, 1024, 1100}) {
    EXPECT_EQ(FirstRow(*matmul, rows), alone) << rows << " rows";
  }
}

// What the test above rests on.
TEST_F(CudaMatMulTest, AnUnpinnedProductHasOtherBitsInAnotherBatch) {
  auto matmul = Create(false);
  const std::vector<float> alone = FirstRow(*matmul, 1);
  for (int64_t rows : {2, 3, 8, 17, 64, 200, 1024}) {
    EXPECT_NE(FirstRow(*matmul, rows), alone) << rows << " rows";
  }
}

TEST_F(CudaMatMulTest, WithoutAnAlgorithmToPinItSaysSo) {
  auto matmul = Create(true);
  simt::AlwaysSplitProducts(0, true);
  const absl::Status refused = Multiply(*matmul, 64);
  EXPECT_TRUE(absl::IsUnimplemented(refused));
  EXPECT_EQ(refused.message(),
            "batch-invariant: none of 5 algorithms of cuBLASLt multiplies 96 by 24 without "
            "split-K for any number of rows");
  // Nothing of the refusal is kept.
  simt::AlwaysSplitProducts(0, false);
  EXPECT_TRUE(Multiply(*matmul, 64).ok());
  EXPECT_TRUE(context_->Wait().ok());
}

}  // namespace
}  // namespace kvern
