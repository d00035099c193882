#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

// Rows of a register tile. AVX-512 has 32 registers: 12 rows x 2 panels leave 8 for operands. With
// 16 registers of 8 lanes 6 x 1 panel (12 registers) fits. The plain target has nothing to gain.
#if HWY_TARGET == HWY_AVX3
inline constexpr int64_t kTileSizes[] = {1, 2, 4, 6, 8, 12};
inline constexpr size_t kTilePanels = 2;
#elif HWY_TARGET == HWY_AVX2
inline constexpr int64_t kTileSizes[] = {1, 2, 4, 6, 6, 6};
inline constexpr size_t kTilePanels = 1;
#else
inline constexpr int64_t kTileSizes[] = {1, 4, 4, 4, 4, 4};
inline constexpr size_t kTilePanels = 1;
#endif

int64_t TileRows(int64_t rows) {
  const int64_t tiles = NumTiles(rows, kTileSizes[5]);
  const int64_t needed = NumTiles(rows, tiles);
  for (int64_t size : kTileSizes) {
    if (size >= needed) return size;
  }
  return kTileSizes[5];
}

// The size of the last tile, of the `rows` rows that are left: the smallest that holds them.
int64_t LastTileRows(int64_t rows, int64_t tile_rows) {
  if (tile_rows == 1) return 1;
  return *std::find_if(kTileSizes + 1, kTileSizes + 5,
                       [rows](int64_t size) { return size >= rows; });
}

int64_t RowsInTile(int64_t tile, int64_t rows, int64_t tile_rows) {
  const int64_t left = rows - tile * tile_rows;
  return left > tile_rows ? tile_rows : LastTileRows(left, tile_rows);
}

size_t WeightScratchFloats(Packing packing, int64_t k) {
  // Of more columns than this, weights as float32 and rows would not stay in a second-level cache.
  constexpr int64_t kMaxColumns = 4096;
  if (packing != Packing::kBf16 || k > kMaxColumns) return 0;
  return static_cast<size_t>(k) * kTilePanels * 16;
}

bool ReadsInPlace(Packing packing, int64_t rows) {
  return rows == 1 && (packing == Packing::kF32 || packing == Packing::kBf16);
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// The four rows x into columns [0, returned) of out [k][tile_rows], sixteen columns at a time.
HWY_INLINE int64_t PackFourRows(const float* const (&x)[4], Vec16 factors, int64_t k,
                                int64_t tile_rows, float* out) {
  int64_t c = 0;
  for (; c + 16 <= k; c += 16) {
    Vec16 rows[4];
    KVERN_UNROLL for (size_t i = 0; i < 4; ++i) rows[i] = Mul16(Load16(x[i] + c), factors);
    for (size_t e = 0; e < kRegs; ++e) {
      VU in[4];
      VU columns[4];
      KVERN_UNROLL for (size_t i = 0; i < 4; ++i) in[i] = hn::BitCast(DU(), rows[i].r[e]);
      TransposeBlocks(in, columns);
      KVERN_UNROLL for (size_t j = 0; j < 4; ++j) {
        uint32_t lanes[kRegLanes];
        hn::StoreU(columns[j], DU(), lanes);
        KVERN_UNROLL for (size_t b = 0; b < kRegLanes / 4; ++b) {
          const auto column = static_cast<int64_t>(e * kRegLanes + 4 * b + j) + c;
          std::memcpy(out + column * tile_rows, lanes + 4 * b, 4 * sizeof(float));
        }
      }
    }
  }
  return c;
}
#else
HWY_INLINE int64_t PackFourRows(const float* const (&)[4], Vec16, int64_t, int64_t, float*) {
  return 0;
}
#endif

void PackTile(Packing packing, const float* x, int64_t stride, int64_t rows, int64_t k,
              int64_t tile_rows, int64_t tile, float* values) {
  float factors[16];
  for (int64_t i = 0; i < 16; ++i) factors[i] = ColumnFactor(packing, i);
  float* out = values + tile * k * tile_rows;
  const int64_t width = RowsInTile(tile, rows, tile_rows);
  for (int64_t r = 0; r < width; r += 4) {
    // Missing rows repeat the last one; their results are not written.
    const float* in[4];
    for (int64_t i = 0; i < 4; ++i) {
      in[i] = x + std::min(tile * tile_rows + r + i, rows - 1) * stride;
    }
    const int64_t count = std::min<int64_t>(4, width - r);
    const int64_t done = count == 4 ? PackFourRows(in, Load16(factors), k, width, out + r) : 0;
    for (int64_t c = done; c < k; ++c) {
      for (int64_t i = 0; i < count; ++i) out[c * width + r + i] = in[i][c] * factors[c % 16];
    }
  }
}

void SumGroups(const float* x, int64_t stride, int64_t rows, int64_t k, int64_t tile_rows,
               int64_t tile, float* sums) {
  const int64_t groups = k / kGroup;
  float* out = sums + tile * groups * tile_rows;
  const int64_t width = RowsInTile(tile, rows, tile_rows);
  for (int64_t r = 0; r < width; ++r) {
    const int64_t row = tile * tile_rows + r;
    for (int64_t g = 0; g < groups; ++g) {
      const float* in = x + row * stride + g * kGroup;
      out[g * width + r] = row < rows ? Sum16(Add16(Load16(in), Load16(in + 16))) : 0;
    }
  }
}

// Where a tile's results go.
struct TileOut {
  float* out = nullptr;  // of the tile's first row and column
  size_t stride = 0;
  size_t rows = 0;     // rows to write, at most the tile's
  size_t columns = 0;  // columns to write, from the first panel's on; may be more than the tile's
  const float* bias = nullptr;
};

// Adds the bias to a tile's sums [o.rows of them][panels][16] and writes what lies inside the
// matrix.
HWY_NOINLINE void WriteOut(const float* sums, size_t panels, const TileOut& o) {
  for (size_t r = 0; r < o.rows; ++r) {
    for (size_t p = 0; p < panels && 16 * p < o.columns; ++p) {
      const size_t count = std::min<size_t>(16, o.columns - 16 * p);
      Vec16 value = Load16(sums + (r * panels + p) * 16);
      if (o.bias != nullptr) value = Add16(value, LoadFirst16(o.bias + 16 * p, count));
      float* out = o.out + r * o.stride + 16 * p;
      if (count == 16) {
        Store16(value, out);
      } else {
        StoreFirst16(value, out, count);
      }
    }
  }
}

template <Packing kPacking, size_t kRows, size_t kPanels, Kept kKept = Kept::kNo>
HWY_NOINLINE void RunTile(const TileArgs& args, const TileOut& out) {
  Tile<kRows, kPanels> acc;
  if constexpr (kPacking == Packing::kF32) ProductF32(args, acc);
  if constexpr (kKept == Kept::kRead) {
    ProductKept(args, acc);
  } else if constexpr (kPacking == Packing::kBf16) {
    ProductBf16<kKept>(args, acc);
  }
  if constexpr (kPacking == Packing::kInt8) ProductInt8(args, acc);
  if constexpr (kPacking == Packing::kInt4) ProductInt4(args, acc);
  if (out.bias == nullptr && out.rows >= kRows && out.columns >= 16 * kPanels) {
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
        Store16(acc.v[r][p], out.out + r * out.stride + 16 * p);
      }
    }
    return;
  }
  alignas(64) float sums[kRows * kPanels * 16];
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
      Store16(acc.v[r][p], sums + (r * kPanels + p) * 16);
    }
  }
  WriteOut(sums, kPanels, out);
}

using TileFunction = void (*)(const TileArgs&, const TileOut&);

template <Packing kPacking, Kept kKept>
TileFunction TileOf(int64_t rows) {
  return rows == 1               ? &RunTile<kPacking, 1, kMaxPanels>
         : rows == kTileSizes[1] ? &RunTile<kPacking, kTileSizes[1], kTilePanels, kKept>
         : rows == kTileSizes[2] ? &RunTile<kPacking, kTileSizes[2], kTilePanels, kKept>
         : rows == kTileSizes[3] ? &RunTile<kPacking, kTileSizes[3], kTilePanels, kKept>
         : rows == kTileSizes[4] ? &RunTile<kPacking, kTileSizes[4], kTilePanels, kKept>
                                 : &RunTile<kPacking, kTileSizes[5], kTilePanels, kKept>;
}

// What computes the first tile of some panels, those between, and the last.
struct TileFunctions {
  TileFunction first = nullptr;
  TileFunction middle = nullptr;
  TileFunction last = nullptr;
};

template <Packing kPacking>
TileFunctions TileFunctionsFor(const PackedRows& x, bool keep) {
  const int64_t left = (x.rows - 1) % x.tile_rows + 1;
  const int64_t last = LastTileRows(left, x.tile_rows);
  if constexpr (kPacking == Packing::kBf16) {
    if (keep) {
      constexpr size_t kRows = kTileSizes[5];
      return {&RunTile<kPacking, kRows, kTilePanels, Kept::kWrite>,
              &RunTile<kPacking, kRows, kTilePanels, Kept::kRead>,
              TileOf<kPacking, Kept::kRead>(last)};
    }
  }
  const TileFunction full = TileOf<kPacking, Kept::kNo>(x.tile_rows);
  const TileFunction narrow = TileOf<kPacking, Kept::kNo>(last);
  return {x.rows > x.tile_rows ? full : narrow, full, narrow};
}

template <Packing kPacking>
void MultiplyPacking(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
                     int64_t out_stride, int64_t panel, int64_t panel_end, float* scratch) {
  // One row has too few chains of additions to hide their latency, unless it runs over more panels.
  const int64_t step = x.tile_rows == 1 ? kMaxPanels : kTilePanels;
  const bool keep = scratch != nullptr && x.tile_rows == kTileSizes[5] && x.rows > x.tile_rows;
  const TileFunctions run = TileFunctionsFor<kPacking>(x, keep);
  TileArgs args;
  args.panel_bytes = w.panel_bytes;
  args.to_next = static_cast<size_t>(step - 1) * w.panel_bytes;
  args.k = static_cast<size_t>(w.k);
  args.kept = scratch;
  TileOut to;
  to.stride = static_cast<size_t>(out_stride);
  for (; panel < panel_end; panel += step) {
    // Beyond the end the last panel is computed again; what lies outside is not written.
    for (int64_t p = 0; p < step; ++p) args.panels[p] = w.Panel(std::min(panel + p, panel_end - 1));
    to.columns = static_cast<size_t>(std::min(w.n, panel_end * kPanelRows) - panel * kPanelRows);
    to.bias = bias == nullptr ? nullptr : bias + panel * kPanelRows;
    for (int64_t row = 0; row < x.rows; row += x.tile_rows) {
      args.x = x.values + row * w.k;
      if constexpr (kPacking == Packing::kInt8 || kPacking == Packing::kInt4) {
        args.sums = x.group_sums + row * (w.k / kGroup);
      }
      to.out = out + row * out_stride + panel * kPanelRows;
      to.rows = static_cast<size_t>(std::min(x.rows - row, x.tile_rows));
      const TileFunction tile = row == 0                     ? run.first
                                : row + x.tile_rows < x.rows ? run.middle
                                                             : run.last;
      tile(args, to);
    }
  }
}

void Multiply(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
              int64_t out_stride, int64_t begin, int64_t end, float* scratch) {
  switch (w.packing) {
    case Packing::kF32:
      return MultiplyPacking<Packing::kF32>(w, x, bias, out, out_stride, begin, end, nullptr);
    case Packing::kBf16:
      return MultiplyPacking<Packing::kBf16>(w, x, bias, out, out_stride, begin, end, scratch);
    case Packing::kInt8:
      return MultiplyPacking<Packing::kInt8>(w, x, bias, out, out_stride, begin, end, nullptr);
    case Packing::kInt4:
      return MultiplyPacking<Packing::kInt4>(w, x, bias, out, out_stride, begin, end, nullptr);
  }
}

constexpr MatMulKernels kMatMul{&TileRows,  &ReadsInPlace,        &PackTile,
                                &SumGroups, &WeightScratchFloats, &Multiply};

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvern::cpu {

const MatMulKernels& MatMulFor(Isa isa) { return *KVERN_TABLE_FOR(kMatMul, isa); }

}  // namespace kvern::cpu
#endif  // HWY_ONCE
