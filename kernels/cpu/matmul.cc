#include "kernels/cpu/matmul.h"

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/matmul_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

// AVX-512 has 32 registers: a tile of 12 x 2 panels leaves 8 for operands. With 16 registers of 8
// lanes 6 x 1 panel (12 registers) fits.
inline constexpr bool kWide = kRegLanes == 16;
inline constexpr int64_t kMaxTileRows = kWide ? 12 : 6;
inline constexpr size_t kTilePanels = kWide ? 2 : 1;

int64_t TileRows(int64_t rows) {
  const int64_t tiles = NumTiles(rows, kMaxTileRows);
  const int64_t needed = NumTiles(rows, tiles);
  for (int64_t size : {1, 2, 4, 6, 8}) {
    if (size >= needed) return size;
  }
  return kMaxTileRows;
}

bool ReadsInPlace(Packing packing, int64_t rows) {
  return rows == 1 && (packing == Packing::kF32 || packing == Packing::kBf16);
}

void PackTile(Packing packing, const float* x, int64_t stride, int64_t rows, int64_t k,
              int64_t tile_rows, int64_t tile, float* values) {
  float* out = values + tile * k * tile_rows;
  for (int64_t r = 0; r < tile_rows; ++r) {
    const int64_t row = tile * tile_rows + r;
    const float* in = x + row * stride;
    for (int64_t c = 0; c < k; ++c) {
      out[c * tile_rows + r] = row < rows ? in[c] * ColumnFactor(packing, c) : 0;
    }
  }
}

void SumGroups(const float* x, int64_t stride, int64_t rows, int64_t k, int64_t tile_rows,
               int64_t tile, float* sums) {
  const int64_t groups = k / kGroup;
  float* out = sums + tile * groups * tile_rows;
  for (int64_t r = 0; r < tile_rows; ++r) {
    const int64_t row = tile * tile_rows + r;
    for (int64_t g = 0; g < groups; ++g) {
      const float* in = x + row * stride + g * kGroup;
      out[g * tile_rows + r] = row < rows ? Sum16(Add16(Load16(in), Load16(in + 16))) : 0;
    }
  }
}

// Where a tile's results go.
struct TileOut {
  float* out = nullptr;  // of the tile's first row and column
  size_t stride = 0;
  size_t rows = 0;     // rows to write; the tile may have fewer
  size_t columns = 0;  // columns of w from the first panel's on; more than 16 * (panels - 1)
  const float* bias = nullptr;
};

template <size_t kRows, size_t kPanels>
HWY_INLINE void StoreTile(const Tile<kRows, kPanels>& acc, const TileOut& o) {
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
    const size_t count = o.columns >= 16 * (p + 1) ? 16 : o.columns - 16 * p;
    Vec16 bias = Zero16();
    if (o.bias != nullptr) bias = LoadFirst16(o.bias + 16 * p, count);
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      if (r >= o.rows) break;
      const Vec16 value = o.bias == nullptr ? acc.v[r][p] : Add16(acc.v[r][p], bias);
      float* out = o.out + r * o.stride + 16 * p;
      if (count == 16) {
        Store16(value, out);
      } else {
        StoreFirst16(value, out, count);
      }
    }
  }
}

template <Packing kPacking, size_t kRows, size_t kPanels>
HWY_NOINLINE void RunTile(const TileArgs& args, const TileOut& out) {
  Tile<kRows, kPanels> acc;
  if constexpr (kPacking == Packing::kF32) ProductF32(args, acc);
  if constexpr (kPacking == Packing::kBf16) ProductBf16(args, acc);
  if constexpr (kPacking == Packing::kInt8) ProductInt8(args, acc);
  if constexpr (kPacking == Packing::kInt4) ProductInt4(args, acc);
  StoreTile(acc, out);
}

// All row tiles of kPanels panels from `panel` on.
template <Packing kPacking, size_t kRows, size_t kPanels>
HWY_INLINE void RunPanels(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
                          int64_t out_stride, int64_t panel) {
  TileArgs args;
  args.panel = w.Panel(panel);
  args.panel_bytes = w.panel_bytes;
  args.k = static_cast<size_t>(w.k);
  TileOut to;
  to.stride = static_cast<size_t>(out_stride);
  to.columns = static_cast<size_t>(w.n - panel * kPanelRows);
  to.bias = bias == nullptr ? nullptr : bias + panel * kPanelRows;
  constexpr int64_t kTileRows = kRows;
  const int64_t tiles = NumTiles(x.rows, kTileRows);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    args.x = x.values + tile * w.k * kTileRows;
    if constexpr (kPacking == Packing::kInt8 || kPacking == Packing::kInt4) {
      args.sums = x.group_sums + tile * (w.k / kGroup) * kTileRows;
    }
    to.out = out + tile * kTileRows * out_stride + panel * kPanelRows;
    to.rows = static_cast<size_t>(x.rows - tile * kTileRows);
    RunTile<kPacking, kRows, kPanels>(args, to);
  }
}

template <Packing kPacking, size_t kRows>
void MultiplyRows(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
                  int64_t out_stride, int64_t panel, int64_t panel_end) {
  // One row has too few chains of additions to hide their latency, unless it runs over more panels.
  constexpr size_t kMost = kRows == 1 ? 4 : kTilePanels;
  constexpr int64_t kStep = kMost;
  for (; panel + kStep <= panel_end; panel += kStep) {
    RunPanels<kPacking, kRows, kMost>(w, x, bias, out, out_stride, panel);
  }
  for (; panel < panel_end; ++panel) {
    RunPanels<kPacking, kRows, 1>(w, x, bias, out, out_stride, panel);
  }
}

template <Packing kPacking>
void MultiplyPacking(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
                     int64_t out_stride, int64_t begin, int64_t end) {
  switch (x.tile_rows) {
    case 1:
      return MultiplyRows<kPacking, 1>(w, x, bias, out, out_stride, begin, end);
    case 2:
      return MultiplyRows<kPacking, 2>(w, x, bias, out, out_stride, begin, end);
    case 4:
      return MultiplyRows<kPacking, 4>(w, x, bias, out, out_stride, begin, end);
    case 6:
      return MultiplyRows<kPacking, 6>(w, x, bias, out, out_stride, begin, end);
    default:
      break;
  }
  if constexpr (kWide) {
    if (x.tile_rows == 8) {
      MultiplyRows<kPacking, 8>(w, x, bias, out, out_stride, begin, end);
    } else {
      MultiplyRows<kPacking, 12>(w, x, bias, out, out_stride, begin, end);
    }
  }
}

void Multiply(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
              int64_t out_stride, int64_t begin, int64_t end) {
  switch (w.packing) {
    case Packing::kF32:
      return MultiplyPacking<Packing::kF32>(w, x, bias, out, out_stride, begin, end);
    case Packing::kBf16:
      return MultiplyPacking<Packing::kBf16>(w, x, bias, out, out_stride, begin, end);
    case Packing::kInt8:
      return MultiplyPacking<Packing::kInt8>(w, x, bias, out, out_stride, begin, end);
    case Packing::kInt4:
      return MultiplyPacking<Packing::kInt4>(w, x, bias, out, out_stride, begin, end);
  }
}

constexpr MatMulKernels kMatMul{&TileRows, &ReadsInPlace, &PackTile, &SumGroups, &Multiply};

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvern::cpu {

const MatMulKernels& MatMulFor(Isa isa) { return *KVERN_TABLE_FOR(kMatMul, isa); }

}  // namespace kvern::cpu
#endif  // HWY_ONCE
