#include "kernels/cpu/packed.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace kvern::cpu {
namespace {

template <typename T>
T Read(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <typename T>
void Write(char* p, T value) {
  std::memcpy(p, &value, sizeof(T));
}

// float16 of a value that is a float16 times a power of two; infinite when too large.
uint16_t ExactToF16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const float magnitude = std::fabs(x);
  if (std::isnan(x)) return static_cast<uint16_t>(sign | 0x7E00u);
  if (magnitude > 65504.0f) return static_cast<uint16_t>(sign | 0x7C00u);
  if (magnitude < 0x1p-14f) {  // Subnormal: a whole number of 2^-24.
    return static_cast<uint16_t>(sign | static_cast<uint32_t>(magnitude * 0x1p24f));
  }
  return static_cast<uint16_t>(sign | (((bits & 0x7FFFFFFFu) - 0x38000000u) >> 13));
}

// Offset of (row, column) in a panel, and the panel it is in.
size_t Bf16Offset(int64_t lane, int64_t column) {
  return static_cast<size_t>((column / 2) * 64 + lane * 4 + (column % 2) * 2);
}
size_t F32Offset(int64_t lane, int64_t column) {
  return static_cast<size_t>(column * 64 + lane * 4);
}

inline float ReadFloat(Source source, const char* row, int64_t column) {
  switch (source) {
    case Source::kF32:
      return Read<float>(row + column * 4);
    case Source::kF16:
      return FromF16(Read<uint16_t>(row + column * 2));
    case Source::kBf16:
      return FromBf16(Read<uint16_t>(row + column * 2));
    case Source::kQ8_0: {
      const char* block = row + (column / 32) * 34;
      return FromF16(Read<uint16_t>(block)) *
             static_cast<float>(Read<int8_t>(block + 2 + column % 32));
    }
    case Source::kQ4_0:
    case Source::kQ4_1: {
      const bool has_min = source == Source::kQ4_1;
      const char* block = row + (column / 32) * (has_min ? 20 : 18);
      const char* codes = block + (has_min ? 4 : 2);
      const int64_t i = column % 32;  // The first half of a block is in the low nibbles.
      const uint8_t byte = Read<uint8_t>(codes + i % 16);
      const float code = static_cast<float>(i < 16 ? byte & 15 : byte >> 4);
      const float scale = FromF16(Read<uint16_t>(block));
      if (!has_min) return scale * (code - 8);
      return scale * code + FromF16(Read<uint16_t>(block + 2));
    }
  }
  return 0;
}

size_t SourceRowBytes(Source source, int64_t k) {
  constexpr int64_t kBlockElements[] = {1, 1, 1, 32, 32, 32};
  constexpr int64_t kBlockBytes[] = {4, 2, 2, 34, 18, 20};
  const auto i = static_cast<size_t>(source);
  return static_cast<size_t>(k / kBlockElements[i] * kBlockBytes[i]);
}

void PackInt8Row(char* panel, int64_t groups, int64_t lane, const char* row) {
  for (int64_t g = 0; g < groups; ++g) {
    const char* block = row + g * 34;
    std::memcpy(panel + groups * 512 + g * 32 + lane * 2, block, 2);
    for (int64_t quad = 0; quad < 8; ++quad) {
      const uint32_t word = Read<uint32_t>(block + 2 + quad * 4) ^ 0x80808080u;  // q + 128
      Write(panel + g * 512 + quad * 64 + lane * 4, word);
    }
  }
}

// The 32 codes of a Q4 block, in order, as four words of eight.
void Q4Words(const char* codes, uint32_t words[4]) {
  for (int half = 0; half < 2; ++half) {
    for (int w = 0; w < 2; ++w) {
      uint32_t word = 0;
      for (int i = 0; i < 8; ++i) {
        const auto byte = Read<uint8_t>(codes + 8 * w + i);
        word |= static_cast<uint32_t>(half == 0 ? byte & 15 : byte >> 4) << (4 * i);
      }
      words[2 * half + w] = word;
    }
  }
}

bool PackInt4Row(char* panel, int64_t groups, int64_t lane, Source source, const char* row) {
  const bool has_min = source == Source::kQ4_1;
  bool fits = true;
  for (int64_t g = 0; g < groups; ++g) {
    const char* block = row + g * (has_min ? 20 : 18);
    char* out = panel + g * 320;
    const auto scale = Read<uint16_t>(block);
    uint16_t min = 0;
    if (has_min) {
      min = Read<uint16_t>(block + 2);
    } else {
      const float value = -8 * FromF16(scale);
      fits = fits && !(std::isfinite(value) && std::fabs(value) > 65504.0f);
      min = ExactToF16(value);
    }
    Write(out + lane * 2, scale);
    Write(out + 32 + lane * 2, min);
    uint32_t words[4];
    Q4Words(block + (has_min ? 4 : 2), words);
    for (int w = 0; w < 4; ++w) Write(out + 64 + w * 64 + lane * 4, words[w]);
  }
  return fits;
}

// Rows of floats into lanes [lane, lane + count) of a panel. Columns are the outer loop, so that
// all rows of a panel fill one cache line after the other.
template <Source kSource>
void PackFloats(const PackedMatrix& m, char* panel, int64_t lane, int64_t count, const char* rows,
                size_t row_bytes) {
  const auto at = [&](int64_t i, int64_t c) {
    return ReadFloat(kSource, rows + static_cast<size_t>(i) * row_bytes, c);
  };
  if (m.packing == Packing::kF32) {
    for (int64_t c = 0; c < m.k; ++c) {
      for (int64_t i = 0; i < count; ++i) Write(panel + F32Offset(lane + i, c), at(i, c));
    }
    return;
  }
  for (int64_t c = 0; c + 1 < m.k; c += 2) {
    for (int64_t i = 0; i < count; ++i) {
      const uint32_t low = ToBf16(at(i, c));
      const uint32_t high = ToBf16(at(i, c + 1));
      Write(panel + Bf16Offset(lane + i, c), low | high << 16);
    }
  }
  for (int64_t i = 0; m.k % 2 != 0 && i < count; ++i) {
    Write(panel + Bf16Offset(lane + i, m.k - 1), ToBf16(at(i, m.k - 1)));
  }
}

void PackBf16(const PackedMatrix& m, char* panel, int64_t lane, int64_t count, const char* rows,
              size_t row_bytes) {
  for (int64_t pair = 0; pair < m.k / 2; ++pair) {
    for (int64_t i = 0; i < count; ++i) {
      const char* row = rows + static_cast<size_t>(i) * row_bytes;
      Write(panel + Bf16Offset(lane + i, 2 * pair), Read<uint32_t>(row + 4 * pair));
    }
  }
  for (int64_t i = 0; m.k % 2 != 0 && i < count; ++i) {
    const char* row = rows + static_cast<size_t>(i) * row_bytes;
    Write(panel + Bf16Offset(lane + i, m.k - 1), Read<uint16_t>(row + 2 * (m.k - 1)));
  }
}

using FloatPacker = void (*)(const PackedMatrix&, char*, int64_t, int64_t, const char*, size_t);

FloatPacker FloatPackerFor(Packing packing, Source source) {
  if (packing == Packing::kBf16 && source == Source::kBf16) return &PackBf16;
  constexpr FloatPacker kPackers[] = {&PackFloats<Source::kF32>,  &PackFloats<Source::kF16>,
                                      &PackFloats<Source::kBf16>, &PackFloats<Source::kQ8_0>,
                                      &PackFloats<Source::kQ4_0>, &PackFloats<Source::kQ4_1>};
  return kPackers[static_cast<size_t>(source)];
}

}  // namespace

size_t PanelBytes(Packing packing, int64_t k) {
  switch (packing) {
    case Packing::kF32:
      return static_cast<size_t>(k) * 64;
    case Packing::kBf16:
      return static_cast<size_t>((k + 1) / 2) * 64;
    case Packing::kInt8:
      return (static_cast<size_t>(k / kGroup) * 544 + 63) / 64 * 64;
    case Packing::kInt4:
      return static_cast<size_t>(k / kGroup) * 320;
  }
  return 0;
}

uint16_t ToBf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

float FromBf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

float FromF16(uint16_t x) {
  const uint32_t sign = static_cast<uint32_t>(x & 0x8000u) << 16;
  const uint32_t exponent = (x >> 10) & 31u;
  const uint32_t mantissa = x & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

bool CanPack(Packing packing, Source source) {
  switch (packing) {
    case Packing::kF32:
      return true;
    case Packing::kBf16:
      return source == Source::kF32 || source == Source::kF16 || source == Source::kBf16;
    case Packing::kInt8:
      return source == Source::kQ8_0;
    case Packing::kInt4:
      return source == Source::kQ4_0 || source == Source::kQ4_1;
  }
  return false;
}

bool PackRows(const PackedMatrix& matrix, int64_t first, int64_t count, Source source,
              const void* rows) {
  char* panel = matrix.Panel(first / kPanelRows);
  const size_t row_bytes = SourceRowBytes(source, matrix.k);
  const int64_t lane = first % kPanelRows;
  if (matrix.packing == Packing::kF32 || matrix.packing == Packing::kBf16) {
    FloatPackerFor(matrix.packing, source)(matrix, panel, lane, count,
                                           static_cast<const char*>(rows), row_bytes);
    return true;
  }
  bool fits = true;
  for (int64_t i = 0; i < count; ++i) {
    const char* row = static_cast<const char*>(rows) + static_cast<size_t>(i) * row_bytes;
    if (matrix.packing == Packing::kInt8) {
      PackInt8Row(panel, matrix.k / kGroup, lane + i, row);
    } else {
      fits = PackInt4Row(panel, matrix.k / kGroup, lane + i, source, row) && fits;
    }
  }
  return fits;
}

void UnpackRow(const PackedMatrix& m, int64_t row, float* out) {
  const char* panel = m.Panel(row / kPanelRows);
  const int64_t lane = row % kPanelRows;
  const int64_t groups = m.k / kGroup;
  for (int64_t c = 0; c < m.k; ++c) {
    const int64_t g = c / kGroup;
    const int64_t i = c % kGroup;
    switch (m.packing) {
      case Packing::kF32:
        out[c] = Read<float>(panel + F32Offset(lane, c));
        break;
      case Packing::kBf16:
        out[c] = FromBf16(Read<uint16_t>(panel + Bf16Offset(lane, c)));
        break;
      case Packing::kInt8: {
        const char* code = panel + g * 512 + (i / 4) * 64 + lane * 4 + i % 4;
        out[c] = FromF16(Read<uint16_t>(panel + groups * 512 + g * 32 + lane * 2)) *
                 (static_cast<float>(Read<uint8_t>(code)) - 128);
        break;
      }
      case Packing::kInt4: {
        const char* group = panel + g * 320;
        const auto word = Read<uint32_t>(group + 64 + (i / 8) * 64 + lane * 4);
        const float code = static_cast<float>((word >> (4 * (i % 8))) & 15u);
        out[c] = FromF16(Read<uint16_t>(group + lane * 2)) * code +
                 FromF16(Read<uint16_t>(group + 32 + lane * 2));
        break;
      }
    }
  }
}

}  // namespace kvern::cpu
