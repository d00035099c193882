// How weight matrices lie in memory: 16 consecutive rows (outputs) form a panel in which the values
// of one column (input) lie side by side, so that one vector holds 16 outputs and a sum over
// columns never crosses lanes. Rows are padded to whole panels with zeros.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvern::cpu {

inline constexpr int64_t kPanelRows = 16;
inline constexpr int64_t kGroup = 32;  // Columns that share a scale.

// Groups are of kGroup columns; q is a code.
enum class Packing : uint8_t {
  kF32,   // [K][16] float32
  kBf16,  // [ceil(K / 2)][16][2] bfloat16
  kInt8,  // w = scale * q: [K / 32][8][16][4] uint8 q + 128, then [K / 32][16] float16 scales
  kInt4,  // w = scale * q + min: per group float16 scales [16] and mins [16], then [4][16] uint32
          // of eight codes each, the first in the lowest bits
};

// Bytes of one panel of `k` columns, a multiple of 64. REQUIRES: k % 32 == 0 for kInt8 and kInt4.
size_t PanelBytes(Packing packing, int64_t k);

constexpr int64_t NumPanels(int64_t rows) { return (rows + kPanelRows - 1) / kPanelRows; }

// A packed matrix [n outputs, k inputs]; data is aligned to 64 bytes.
struct PackedMatrix {
  Packing packing = Packing::kF32;
  int64_t n = 0;
  int64_t k = 0;
  size_t panel_bytes = 0;
  char* data = nullptr;

  char* Panel(int64_t panel) const { return data + static_cast<size_t>(panel) * panel_bytes; }
};

// bfloat16 nearest to x, ties to even; a NaN stays a NaN.
uint16_t ToBf16(float x);
float FromBf16(uint16_t x);
float FromF16(uint16_t x);

// ---- Filling. Each writes `count` <= 16 rows, rows [first, first + count) of panel first / 16
// (they must not cross a panel's end) from `source`, `count` consecutive rows of the file's
// encoding. Rows of different calls may be filled by different threads at once.

enum class Source : uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1 };

// True for the pairs that PackRows accepts: any to kF32; F32, F16, BF16 to kBf16; Q8_0 to kInt8;
// Q4_0 and Q4_1 to kInt4.
bool CanPack(Packing packing, Source source);

// Returns false when a value does not fit: a Q4_0 scale whose 8-fold overflows float16.
bool PackRows(const PackedMatrix& matrix, int64_t first, int64_t count, Source source,
              const void* rows);

// out[0..k) = row `row` as float32.
void UnpackRow(const PackedMatrix& matrix, int64_t row, float* out);

}  // namespace kvern::cpu
