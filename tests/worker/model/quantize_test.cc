#include "worker/model/quantize.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cluster/base/rng.h"
#include "schemas/files/dequantize.h"

namespace kvern {
namespace {

std::vector<float> Back(FileDtype dtype, const std::vector<std::byte>& bytes, size_t count) {
  std::vector<float> values(count);
  DequantizeRow(dtype, bytes, values);
  return values;
}

TEST(QuantizeTest, ErrorIsHalfAStepOfEachGroup) {
  Rng rng(5);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> values(96);
    double scale = std::pow(10.0, static_cast<double>(rng.Between(-3, 2)));
    for (float& v : values) v = static_cast<float>((UnitInterval(rng.Next()) - 0.3) * scale);
    for (FileDtype dtype : {FileDtype::kQ8_0, FileDtype::kQ4_1}) {
      std::vector<std::byte> bytes;
      QuantizeRow(dtype, values, bytes);
      ASSERT_EQ(bytes.size(), 3 * Info(dtype).block_bytes);
      std::vector<float> back = Back(dtype, bytes, values.size());
      for (size_t group = 0; group < 3; ++group) {
        auto begin = values.begin() + static_cast<std::ptrdiff_t>(32 * group);
        auto [low, high] = std::minmax_element(begin, begin + 32);
        float largest = std::max(std::fabs(*low), std::fabs(*high));
        float step = dtype == FileDtype::kQ8_0 ? largest / 127 : (*high - *low) / 15;
        // Half a step, and what float16 loses on scale and offset: 2^-11 each, 2^-25 if denormal.
        float bound = 0.5f * step + largest * 0x1p-10f + 127 * 0x1p-25f;
        for (size_t i = 32 * group; i < 32 * group + 32; ++i) {
          EXPECT_LE(std::fabs(values[i] - back[i]), bound);
        }
      }
    }
  }
}

TEST(QuantizeTest, ZerosAndExactCodesSurvive) {
  std::vector<float> zeros(32, 0.0f);
  std::vector<std::byte> bytes;
  for (FileDtype dtype : {FileDtype::kQ8_0, FileDtype::kQ4_1}) {
    QuantizeRow(dtype, zeros, bytes);
    EXPECT_EQ(Back(dtype, bytes, 32), zeros);
  }
  std::vector<float> codes(32);
  for (size_t i = 0; i < 32; ++i) codes[i] = static_cast<float>(i % 16) * 0.5f - 3.0f;
  QuantizeRow(FileDtype::kQ4_1, codes, bytes);
  EXPECT_EQ(Back(FileDtype::kQ4_1, bytes, 32), codes);
}

}  // namespace
}  // namespace kvern
