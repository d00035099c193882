// Element types one by one, with values worked out by hand.
#include "schemas/files/dequantize.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"
#include "tests/schemas/files/model_builder.h"

namespace kvern {
namespace {

std::vector<float> Row(FileDtype dtype, const std::string& bytes, size_t elements) {
  std::vector<float> out(elements);
  DequantizeRow(dtype, std::as_bytes(std::span(bytes)), out);
  return out;
}

constexpr uint16_t kHalf = 0x3800;   // 0.5 as f16
constexpr uint16_t kThree = 0x4200;  // 3 as f16

TEST(Dequantize, HalfPrecision) {
  EXPECT_EQ(FloatFromF16(0x3c00), 1.0f);
  EXPECT_EQ(FloatFromF16(0xc000), -2.0f);
  EXPECT_EQ(FloatFromF16(0x7bff), 65504.0f);
  EXPECT_EQ(FloatFromF16(0x0400), 0x1p-14f);  // smallest normal
  EXPECT_EQ(FloatFromF16(0x0001), 0x1p-24f);  // smallest subnormal
  EXPECT_EQ(FloatFromF16(0x83ff), -1023 * 0x1p-24f);
  EXPECT_TRUE(std::signbit(FloatFromF16(0x8000)));
  EXPECT_EQ(FloatFromF16(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_EQ(FloatFromF16(0xfc00), -std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(FloatFromF16(0x7e01)));
}

TEST(Dequantize, Bfloat) {
  EXPECT_EQ(FloatFromBf16(0x3f80), 1.0f);
  EXPECT_EQ(FloatFromBf16(0xc049), -3.140625f);
  EXPECT_TRUE(std::isnan(FloatFromBf16(0x7fc0)));
}

TEST(Dequantize, PlainRowsNeedNoAlignment) {
  std::string bytes = "x" + Bytes(1.5f) + Bytes(-2.0f);
  std::vector<float> out(2);
  DequantizeRow(FileDtype::kF32, std::as_bytes(std::span(bytes)).subspan(1), out);
  EXPECT_EQ(out, (std::vector<float>{1.5f, -2.0f}));
  EXPECT_EQ(Row(FileDtype::kF16, Bytes(kHalf) + Bytes(kThree), 2), (std::vector<float>{0.5f, 3}));
}

TEST(Dequantize, Q8BlocksAreScaledIntegers) {
  std::string block = Bytes(kHalf);
  for (int i = 0; i < 32; ++i) block += Bytes(static_cast<int8_t>(i - 16));
  std::vector<float> row = Row(FileDtype::kQ8_0, block + block, 64);
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(row[i], 0.5f * (static_cast<float>(i % 32) - 16)) << i;
  }
}

// Byte i of a 4-bit block holds code i in its low half and code i + 16 in its high half.
TEST(Dequantize, Q4BlocksHoldLowHalvesFirst) {
  std::string codes;
  for (int i = 0; i < 16; ++i) codes += Bytes(static_cast<uint8_t>(i | (15 - i) << 4));
  std::vector<float> centred = Row(FileDtype::kQ4_0, Bytes(kHalf) + codes, 32);
  std::vector<float> offset = Row(FileDtype::kQ4_1, Bytes(kHalf) + Bytes(kThree) + codes, 32);
  for (size_t i = 0; i < 32; ++i) {
    float code = static_cast<float>(i < 16 ? i : 31 - i);
    EXPECT_EQ(centred[i], 0.5f * (code - 8)) << i;
    EXPECT_EQ(offset[i], 0.5f * code + 3) << i;
  }
}

}  // namespace
}  // namespace kvern
