#include "kernels/cpu/rows.h"

#include <cmath>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/packed.h"
#include "kernels/reference/rows.h"
#include "tests/kernels/random_data.h"

namespace kvern {
namespace {

std::vector<double> Wide(const std::vector<float>& values) {
  return {values.begin(), values.end()};
}

constexpr size_t kSizes[] = {1, 2, 15, 16, 17, 31, 64, 100, 576};

TEST(RowsTest, RmsNormAddsThenNormalises) {
  Rng rng(1);
  for (size_t n : kSizes) {
    const std::vector<float> delta = RandomFloats(rng, n, 3);
    const std::vector<float> x = RandomFloats(rng, n, 3);
    const std::vector<float> weight = RandomFloats(rng, n);
    for (bool add : {false, true}) {
      std::vector<float> sum = x;
      for (size_t i = 0; add && i < n; ++i) sum[i] += delta[i];
      const std::vector<double> want = reference::RmsNorm(Wide(sum), weight, 1e-5);
      for (cpu::Isa isa : SupportedIsas()) {
        std::vector<float> got_x = x;
        std::vector<float> out = delta;  // The output may take the delta's place.
        cpu::RowsFor(isa).rms_norm(add ? out.data() : nullptr, got_x.data(), weight.data(), 1e-5f,
                                   static_cast<int64_t>(n), out.data());
        EXPECT_EQ(got_x, sum);
        for (size_t i = 0; i < n; ++i) {
          ASSERT_NEAR(out[i], want[i], 2e-6) << cpu::IsaName(isa) << " n=" << n << " at " << i;
        }
      }
    }
  }
}

TEST(RowsTest, SwiGluAgreesWithFloat64) {
  Rng rng(2);
  for (size_t n : kSizes) {
    const std::vector<float> gate = RandomFloats(rng, n, 20);
    const std::vector<float> up = RandomFloats(rng, n);
    for (cpu::Isa isa : SupportedIsas()) {
      std::vector<float> out(n);
      cpu::RowsFor(isa).swiglu(gate.data(), up.data(), static_cast<int64_t>(n), out.data());
      for (size_t i = 0; i < n; ++i) {
        const double want =
            reference::SwiGlu(static_cast<double>(gate[i]), static_cast<double>(up[i]));
        ASSERT_NEAR(out[i], want, 4e-7 * std::fabs(want) + 1e-30) << cpu::IsaName(isa);
      }
    }
  }
}

TEST(RowsTest, SwiGluOfExtremesIsFinite) {
  const std::vector<float> gate = {-1e30f, -200, -88, 0, 88, 200, 1e30f};
  const std::vector<float> up(gate.size(), 1.0f);
  for (cpu::Isa isa : SupportedIsas()) {
    std::vector<float> out(gate.size());
    cpu::RowsFor(isa).swiglu(gate.data(), up.data(), static_cast<int64_t>(gate.size()), out.data());
    EXPECT_NEAR(out[1], 0, 1e-30);
    EXPECT_EQ(out[3], 0);
    EXPECT_EQ(out[5], 200);
    EXPECT_EQ(out[6], 1e30f);
    for (float x : out) EXPECT_TRUE(std::isfinite(x)) << x;
  }
}

TEST(RowsTest, RopeRotatesPairs) {
  Rng rng(3);
  for (size_t half : {1u, 8u, 15u, 16u, 32u, 36u, 128u}) {
    const std::vector<float> head = RandomFloats(rng, 2 * half, 2);
    std::vector<float> cos(half);
    std::vector<float> sin(half);
    for (size_t i = 0; i < half; ++i) {
      cos[i] = std::cos(static_cast<float>(i) + 0.3f);
      sin[i] = std::sin(static_cast<float>(i) + 0.3f);
    }
    const std::vector<double> want = reference::Rope(Wide(head), Wide(cos), Wide(sin));
    for (cpu::Isa isa : SupportedIsas()) {
      std::vector<float> got = head;
      cpu::RowsFor(isa).rope(got.data(), cos.data(), sin.data(), static_cast<int64_t>(half));
      for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6);
    }
  }
}

TEST(RowsTest, Bf16RoundsToNearestEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  // 0x1.01p0 lies half way between 0x1.00p0 and 0x1.02p0, 0x1.03p0 between 0x1.02p0 and 0x1.04p0.
  const std::vector<float> x = {0.0f,  -0.0f,  1.0f,     0x1.01p0f, 0x1.03p0f, 0x1.010002p0f,
                                -3.5f, 1e-40f, infinity, -infinity, nan,       3.4e38f};
  std::vector<uint16_t> want;
  for (float v : x) want.push_back(cpu::ToBf16(v));
  EXPECT_EQ(want[3], 0x3F80);
  EXPECT_EQ(want[4], 0x3F82);
  EXPECT_EQ(want[5], 0x3F81);
  EXPECT_EQ(want[8], 0x7F80);
  EXPECT_GT(want[10] & 0x7FFF, 0x7F80);
  EXPECT_EQ(want[11], 0x7F80);
  for (cpu::Isa isa : SupportedIsas()) {
    std::vector<uint16_t> got(x.size());
    cpu::RowsFor(isa).to_bf16(x.data(), static_cast<int64_t>(x.size()), got.data());
    EXPECT_EQ(got, want) << cpu::IsaName(isa);
  }
}

TEST(RowsTest, Bf16OfRandomBitsAgreesWithTheScalarOne) {
  Rng rng(4);
  std::vector<float> x(1000);
  for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(rng.Next()));
  for (cpu::Isa isa : SupportedIsas()) {
    std::vector<uint16_t> got(x.size());
    cpu::RowsFor(isa).to_bf16(x.data(), static_cast<int64_t>(x.size()), got.data());
    for (size_t i = 0; i < x.size(); ++i)
      ASSERT_EQ(got[i], cpu::ToBf16(x[i])) << cpu::IsaName(isa) << " " << Bits(x)[i];
  }
}

using WideRowsTest = testing::TestWithParam<cpu::Isa>;

TEST_P(WideRowsTest, BitEqualToAvx2) {
  Rng rng(5);
  const std::vector<float> x = RandomFloats(rng, 583, 4);
  const std::vector<float> weight = RandomFloats(rng, 583);
  std::vector<uint32_t> results[2];
  size_t i = 0;
  for (cpu::Isa isa : {cpu::Isa::kAvx2, GetParam()}) {
    std::vector<float> norm(583);
    std::vector<float> glu(583);
    std::vector<float> copy = x;
    cpu::RowsFor(isa).rms_norm(nullptr, copy.data(), weight.data(), 1e-6f, 583, norm.data());
    cpu::RowsFor(isa).swiglu(x.data(), weight.data(), 583, glu.data());
    norm.insert(norm.end(), glu.begin(), glu.end());
    results[i++] = Bits(norm);
  }
  EXPECT_EQ(results[0], results[1]);
}

// None on a machine that ends with AVX2.
INSTANTIATE_TEST_SUITE_P(Wider, WideRowsTest, testing::ValuesIn(IsasBeyondAvx2()));

}  // namespace
}  // namespace kvern
