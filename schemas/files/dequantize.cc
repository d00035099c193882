#include "schemas/files/dequantize.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "cluster/base/check.h"

namespace kvern {
namespace {

template <typename T>
T Load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

float LoadF16(const std::byte* at) { return FloatFromF16(Load<uint16_t>(at)); }

// The 32 codes of a 4-bit block: the low halves of 16 bytes, then their high halves.
int Code(const std::byte* codes, size_t i) {
  auto byte = std::to_integer<int>(codes[i % 16]);
  return i < 16 ? byte & 15 : byte >> 4;
}

void DequantizeBlock(FileDtype dtype, const std::byte* block, float* out) {
  switch (dtype) {
    case FileDtype::kF32:
      *out = Load<float>(block);
      return;
    case FileDtype::kF16:
      *out = LoadF16(block);
      return;
    case FileDtype::kBf16:
      *out = FloatFromBf16(Load<uint16_t>(block));
      return;
    case FileDtype::kQ8_0:
      for (size_t i = 0; i < 32; ++i) {
        out[i] = LoadF16(block) * static_cast<float>(Load<int8_t>(block + 2 + i));
      }
      return;
    case FileDtype::kQ4_0:
      for (size_t i = 0; i < 32; ++i) {
        out[i] = LoadF16(block) * static_cast<float>(Code(block + 2, i) - 8);
      }
      return;
    case FileDtype::kQ4_1:
      for (size_t i = 0; i < 32; ++i) {
        out[i] = LoadF16(block) * static_cast<float>(Code(block + 4, i)) + LoadF16(block + 2);
      }
      return;
  }
}

}  // namespace

float FloatFromF16(uint16_t bits) {
  uint32_t sign = (bits & 0x8000u) << 16;
  uint32_t exponent = (bits >> 10) & 31u;
  uint32_t fraction = bits & 0x3ffu;
  if (exponent == 0) {  // Zero and subnormal: fraction x 2^-24.
    float magnitude = std::ldexp(static_cast<float>(fraction), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  uint32_t wide = exponent == 31 ? 255u : exponent + 112u;  // Bias 127 instead of 15.
  return std::bit_cast<float>(sign | wide << 23 | fraction << 13);
}

float FloatFromBf16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

void DequantizeRow(FileDtype dtype, std::span<const std::byte> row, std::span<float> out) {
  const FileDtypeInfo info = Info(dtype);
  size_t blocks = out.size() / info.block_elements;
  KVERN_CHECK_EQ(blocks * info.block_elements, out.size());
  KVERN_CHECK_EQ(blocks * info.block_bytes, row.size());
  for (size_t b = 0; b < blocks; ++b) {
    DequantizeBlock(dtype, row.data() + b * info.block_bytes, &out[b * info.block_elements]);
  }
}

}  // namespace kvern
