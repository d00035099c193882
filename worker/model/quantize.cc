#include "worker/model/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "cluster/base/check.h"
#include "schemas/files/dequantize.h"

namespace kvern {
namespace {

constexpr size_t kBlock = 32;

// IEEE binary16, round to nearest even; too large becomes infinity, too small is denormal or zero.
uint16_t F16FromFloat(float value) {
  uint32_t bits = std::bit_cast<uint32_t>(value);
  auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  float magnitude = std::fabs(value);
  if (!(magnitude < 65520.0f)) return sign | (magnitude != magnitude ? 0x7e00 : 0x7c00);
  if (magnitude < 0x1p-14f) {
    auto denormal = static_cast<uint16_t>(std::lrintf(magnitude * 0x1p24f));
    return sign | denormal;
  }
  uint32_t rounded = (bits & 0x7fffffff) + 0xfff + ((bits >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded >> 13) - (112u << 10));
}

int Code(float value, float scale, int low, int high) {
  if (scale == 0) return std::clamp(0, low, high);
  return static_cast<int>(std::clamp<long>(std::lrintf(value / scale), low, high));
}

std::byte* PutF16(std::byte* out, uint16_t bits) {
  std::memcpy(out, &bits, sizeof(bits));
  return out + sizeof(bits);
}

void BlockQ8(const float* values, std::byte* out) {
  float largest = 0;
  for (size_t i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  uint16_t bits = F16FromFloat(largest / 127);
  float scale = FloatFromF16(bits);
  out = PutF16(out, bits);
  for (size_t i = 0; i < kBlock; ++i) {
    out[i] = static_cast<std::byte>(Code(values[i], scale, -127, 127));
  }
}

// Codes 0..15 of element i in the low half of byte i, of element i + 16 in the high half.
void BlockQ4(const float* values, std::byte* out) {
  auto [low, high] = std::minmax_element(values, values + kBlock);
  uint16_t min_bits = F16FromFloat(*low);
  uint16_t scale_bits = F16FromFloat((*high - *low) / 15);
  float min = FloatFromF16(min_bits);
  float scale = FloatFromF16(scale_bits);
  out = PutF16(PutF16(out, scale_bits), min_bits);
  for (size_t i = 0; i < kBlock / 2; ++i) {
    int first = Code(values[i] - min, scale, 0, 15);
    int second = Code(values[i + kBlock / 2] - min, scale, 0, 15);
    out[i] = static_cast<std::byte>(first | second << 4);
  }
}

}  // namespace

void QuantizeRow(FileDtype target, std::span<const float> values, std::vector<std::byte>& out) {
  KVERN_CHECK(target == FileDtype::kQ8_0 || target == FileDtype::kQ4_1);
  KVERN_CHECK_EQ(values.size() % kBlock, size_t{0});
  size_t block_bytes = Info(target).block_bytes;
  size_t blocks = values.size() / kBlock;
  out.resize(blocks * block_bytes);
  for (size_t b = 0; b < blocks; ++b) {
    const float* block = values.data() + b * kBlock;
    std::byte* place = out.data() + b * block_bytes;
    target == FileDtype::kQ8_0 ? BlockQ8(block, place) : BlockQ4(block, place);
  }
}

}  // namespace kvern
