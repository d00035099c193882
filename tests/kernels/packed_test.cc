#include "kernels/cpu/packed.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/random_data.h"

namespace kvern {
namespace {

using cpu::Packing;
using cpu::Source;

class Bytes {
 public:
  template <typename T>
  void Put(T value) {
    const char* bytes = reinterpret_cast<const char*>(&value);
    data_.insert(data_.end(), bytes, bytes + sizeof(T));
  }
  const char* data() const { return data_.data(); }

 private:
  std::vector<char> data_;
};

// Packs `count` rows into a fresh matrix from row `first` on and reads them back.
std::vector<float> RoundTrip(Packing packing, Source source, int64_t k, int64_t first,
                             int64_t count, const Bytes& rows) {
  cpu::PackedMatrix m;
  m.packing = packing;
  m.n = 40;
  m.k = k;
  m.panel_bytes = cpu::PanelBytes(packing, k);
  std::vector<char> memory(m.panel_bytes * 3);
  m.data = memory.data();
  EXPECT_TRUE(cpu::PackRows(m, first, count, source, rows.data()));
  std::vector<float> out(static_cast<size_t>(count * k));
  for (int64_t i = 0; i < count; ++i) cpu::UnpackRow(m, first + i, out.data() + i * k);
  return out;
}

TEST(PackedTest, Float16CoversAllItsValues) {
  // Sign, exponent and mantissa by the definition of IEEE 754.
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float got = cpu::FromF16(static_cast<uint16_t>(bits));
    const uint32_t exponent = (bits >> 10) & 31;
    const double mantissa = bits & 1023;
    const double sign = bits >= 32768 ? -1 : 1;
    if (exponent == 31) {
      EXPECT_TRUE(mantissa == 0 ? std::isinf(got) : std::isnan(got)) << bits;
    } else if (exponent == 0) {
      ASSERT_EQ(got, sign * std::ldexp(mantissa, -24)) << bits;
    } else {
      ASSERT_EQ(got, sign * std::ldexp(1024 + mantissa, static_cast<int>(exponent) - 25)) << bits;
    }
  }
}

TEST(PackedTest, FloatsKeepTheirValues) {
  Rng rng(1);
  for (int64_t k : {1, 7, 64}) {
    Bytes f32;
    Bytes f16;
    Bytes bf16;
    std::vector<float> want32;
    std::vector<float> want16;
    std::vector<float> want_rounded;
    for (int64_t i = 0; i < 3 * k; ++i) {
      const float x = RandomFloat(rng, 100);
      const auto half = static_cast<uint16_t>(rng.Below(0x7C00));
      f32.Put(x);
      f16.Put(half);
      bf16.Put(cpu::ToBf16(x));
      want32.push_back(x);
      want16.push_back(cpu::FromF16(half));
      want_rounded.push_back(cpu::FromBf16(cpu::ToBf16(x)));
    }
    EXPECT_EQ(RoundTrip(Packing::kF32, Source::kF32, k, 13, 3, f32), want32);
    EXPECT_EQ(RoundTrip(Packing::kF32, Source::kF16, k, 13, 3, f16), want16);
    EXPECT_EQ(RoundTrip(Packing::kBf16, Source::kBf16, k, 13, 3, bf16), want_rounded);
    EXPECT_EQ(RoundTrip(Packing::kBf16, Source::kF32, k, 13, 3, f32), want_rounded);
    for (float& x : want16) x = cpu::FromBf16(cpu::ToBf16(x));
    EXPECT_EQ(RoundTrip(Packing::kBf16, Source::kF16, k, 13, 3, f16), want16);
  }
}

TEST(PackedTest, Q8KeepsItsValues) {
  Rng rng(2);
  constexpr int64_t kColumns = 96;
  Bytes rows;
  std::vector<float> want;
  for (int i = 0; i < 2 * kColumns / 32; ++i) {
    // Subnormal float16 scales too.
    const auto scale = static_cast<uint16_t>(i == 1 ? 3 : rng.Below(0x4000));
    rows.Put(scale);
    for (int j = 0; j < 32; ++j) {
      const auto code = static_cast<int8_t>(j == 0 ? 128 : rng.Below(256));
      rows.Put(code);
      want.push_back(cpu::FromF16(scale) * static_cast<float>(code));
    }
  }
  EXPECT_EQ(RoundTrip(Packing::kInt8, Source::kQ8_0, kColumns, 16, 2, rows), want);
  EXPECT_EQ(RoundTrip(Packing::kF32, Source::kQ8_0, kColumns, 16, 2, rows), want);
}

TEST(PackedTest, Q4KeepsItsValues) {
  Rng rng(3);
  constexpr int64_t kColumns = 64;
  for (bool has_min : {false, true}) {
    Bytes rows;
    std::vector<float> want;
    for (int i = 0; i < 3 * kColumns / 32; ++i) {
      const auto scale = static_cast<uint16_t>(i == 1 ? 5 : rng.Below(0x4000));
      const auto min = static_cast<uint16_t>(0x8000 | rng.Below(0x4000));
      rows.Put(scale);
      if (has_min) rows.Put(min);
      uint8_t codes[32];
      for (uint8_t& code : codes) code = static_cast<uint8_t>(rng.Below(16));
      for (int j = 0; j < 16; ++j) {
        rows.Put(static_cast<uint8_t>(codes[j] | codes[j + 16] << 4));
      }
      const float zero = has_min ? cpu::FromF16(min) : -8 * cpu::FromF16(scale);
      for (uint8_t code : codes) {
        want.push_back(cpu::FromF16(scale) * static_cast<float>(code) + zero);
      }
    }
    const Source source = has_min ? Source::kQ4_1 : Source::kQ4_0;
    EXPECT_EQ(RoundTrip(Packing::kInt4, source, kColumns, 29, 3, rows), want);
    EXPECT_EQ(RoundTrip(Packing::kF32, source, kColumns, 29, 3, rows), want);
  }
}

TEST(PackedTest, AQ4ScaleThatOverflowsIsRefused) {
  for (uint16_t scale : {uint16_t{0x7000}, uint16_t{0x6FFF}}) {  // 8192 and just below.
    Bytes row;
    row.Put(scale);
    for (int i = 0; i < 16; ++i) row.Put(uint8_t{0});
    cpu::PackedMatrix m;
    m.packing = Packing::kInt4;
    m.n = 16;
    m.k = 32;
    m.panel_bytes = cpu::PanelBytes(m.packing, m.k);
    std::vector<char> memory(m.panel_bytes);
    m.data = memory.data();
    EXPECT_EQ(cpu::PackRows(m, 0, 1, Source::kQ4_0, row.data()), scale < 0x7000);
  }
}

}  // namespace
}  // namespace kvern
