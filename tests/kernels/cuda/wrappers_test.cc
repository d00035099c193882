// Each wrapper of kernels/cuda/language.cuh against plain code on the host.
#include "tests/kernels/cuda/wrappers.h"

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cuda/device_memory.h"

namespace kvern::gpu {
namespace {

// Nearest even, on the bits.
uint16_t Bf16Bits(float value) {
  auto bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

double Value(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

std::vector<uint16_t> RandomBf16(size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> value(-2, 2);
  std::vector<uint16_t> values(count);
  for (uint16_t& v : values) v = Bf16Bits(value(random));
  return values;
}

// d0 + a b in float64; b(k, n) says where an element of b is.
template <typename Index>
std::vector<double> Product(const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                            const std::vector<float>& d0, Index index) {
  std::vector<double> d(d0.begin(), d0.end());
  for (size_t row = 0; row < 16; ++row) {
    for (size_t n = 0; n < 8; ++n) {
      for (size_t k = 0; k < 16; ++k) {
        d[row * 8 + n] += Value(a[row * 16 + k]) * Value(b[index(k, n)]);
      }
    }
  }
  return d;
}

void ExpectNear(const std::vector<float>& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_NEAR(static_cast<double>(got[i]), wanted[i], 1e-4)
        << "row " << i / 8 << " column " << i % 8;
  }
}

class WrappersTest : public ::testing::Test {
 protected:
  const std::vector<uint16_t> values_a_ = RandomBf16(256, 1);
  const std::vector<uint16_t> values_b_ = RandomBf16(128, 2);
  std::vector<float> values_d_ = std::vector<float>(128);

  void SetUp() override {
    for (size_t i = 0; i < values_d_.size(); ++i) values_d_[i] = static_cast<float>(i) / 8;
  }
};

TEST_F(WrappersTest, ProductOfKeysAsTheyLie) {
  DeviceArray<uint16_t> a(values_a_);
  DeviceArray<uint16_t> b(values_b_);
  DeviceArray<float> d(values_d_);
  ASSERT_EQ(RunMma(a.get(), b.get(), d.get(), nullptr), cudaSuccess);
  ExpectNear(d.Read(), Product(values_a_, values_b_, values_d_,
                               [](size_t k, size_t n) { return n * 16 + k; }));
}

TEST_F(WrappersTest, ProductOfValuesTransposed) {
  DeviceArray<uint16_t> a(values_a_);
  DeviceArray<uint16_t> b(values_b_);
  DeviceArray<float> d(values_d_);
  ASSERT_EQ(RunMmaTransposed(a.get(), b.get(), d.get(), nullptr), cudaSuccess);
  ExpectNear(d.Read(), Product(values_a_, values_b_, values_d_,
                               [](size_t k, size_t n) { return k * 8 + n; }));
}

TEST_F(WrappersTest, RoundsToBf16) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // Ties to even and not, the largest float, subnormal numbers of both kinds.
  std::vector<float> in = {0.0f,       -0.0f,           1.0f,       0x1.01p0f,
                           0x1.03p0f,  0x1.010002p0f,   -0x1.05p3f, kInfinity,
                           -kInfinity, 0x1.fffffep127f, 0x1p-130f,  0x1p-149f};
  std::mt19937 random(3);
  while (in.size() < 4096) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isnan(value)) in.push_back(value);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  in.push_back(nan);
  in.push_back(nan);
  DeviceArray<float> input(in);
  DeviceArray<uint16_t> out(in.size(), uint16_t{});
  DeviceArray<uint32_t> packed(in.size() / 2, uint32_t{});
  ASSERT_EQ(RunToBf16(input.get(), static_cast<int>(in.size()), out.get(), packed.get(), nullptr),
            cudaSuccess);
  const std::vector<uint16_t> bits = out.Read();
  const std::vector<uint32_t> pairs = packed.Read();
  for (size_t i = 0; i < in.size(); ++i) {
    if (std::isnan(in[i])) {
      EXPECT_TRUE(std::isnan(Value(bits[i])));
    } else {
      EXPECT_EQ(bits[i], Bf16Bits(in[i])) << in[i];
    }
    EXPECT_EQ(pairs[i / 2] >> (i % 2 * 16) & 0xffff, bits[i]) << in[i];
  }
}

TEST_F(WrappersTest, PowersOfTwo) {
  std::vector<float> in;
  for (float x = -126; x <= 127; x += 0.0625f) in.push_back(x);
  in.push_back(-std::numeric_limits<float>::infinity());
  in.push_back(-200);
  DeviceArray<float> input(in);
  DeviceArray<float> out(in.size(), float{});
  ASSERT_EQ(RunExp2(input.get(), static_cast<int>(in.size()), out.get(), nullptr), cudaSuccess);
  const std::vector<float> got = out.Read();
  for (size_t i = 0; i + 2 < in.size(); ++i) {
    const double wanted = std::exp2(static_cast<double>(in[i]));
    EXPECT_NEAR(static_cast<double>(got[i]) / wanted, 1, 4e-7) << in[i];
  }
  EXPECT_EQ(got[in.size() - 2], 0);
  EXPECT_EQ(got[in.size() - 1], 0);
}

TEST_F(WrappersTest, CopiesInTheBackground) {
  constexpr int kGroups = 7;
  constexpr uint32_t kValid = 0b1011011;
  std::vector<uint8_t> in(kGroups * 512);
  for (size_t i = 0; i < in.size(); ++i) in[i] = static_cast<uint8_t>(1 + i * 31 % 251);
  DeviceArray<uint8_t> input(in);
  DeviceArray<uint8_t> out(in.size(), uint8_t{});
  ASSERT_EQ(RunCpAsync(input.get(), kGroups, kValid, out.get(), nullptr), cudaSuccess);
  const std::vector<uint8_t> got = out.Read();
  for (size_t i = 0; i < in.size(); ++i) {
    ASSERT_EQ(got[i], (kValid >> (i / 512) & 1) != 0 ? in[i] : 0) << "byte " << i;
  }
}

TEST_F(WrappersTest, WarpsTalk) {
  DeviceArray<uint32_t> out(194, uint32_t{});
  ASSERT_EQ(RunWarp(out.get(), nullptr), cudaSuccess);
  const std::vector<uint32_t> got = out.Read();
  for (uint32_t lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(got[lane], (31 - lane) * 7);
    EXPECT_EQ(got[32 + lane], (lane ^ 5) * 7);
    EXPECT_EQ(got[64 + lane], (lane + 3 < 32 ? lane + 3 : lane) * 7);
    EXPECT_EQ(got[96 + lane], 0xaaaaaaaau);
    EXPECT_EQ(got[128 + lane], 0u);
    EXPECT_EQ(got[160 + lane], 1u);
  }
  EXPECT_EQ(got[192], 528u);
  EXPECT_EQ(got[193], 32u);
}

// What the compiler may count on when it hands out registers.
TEST_F(WrappersTest, NoBlockIsLargerThanTheBoundOfItsKernel) {
  DeviceArray<int> count(1, 0);
  ASSERT_EQ(RunCount(kMostCounted, count.get(), nullptr), cudaSuccess);
  EXPECT_EQ(count.Read(), std::vector<int>{kMostCounted});
  EXPECT_NE(RunCount(kMostCounted + 1, count.get(), nullptr), cudaSuccess);
  EXPECT_NE(cudaGetLastError(), cudaSuccess);
  // It has not run, and no harm is done.
  ASSERT_EQ(RunCount(1, count.get(), nullptr), cudaSuccess);
  EXPECT_EQ(count.Read(), std::vector<int>{kMostCounted + 1});
}

}  // namespace
}  // namespace kvern::gpu
