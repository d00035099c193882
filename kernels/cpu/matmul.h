// out = x * W^T (+ bias) for a packed matrix W, for any number of rows of x.
//
// Batch invariance: an output has one float32 accumulator, summed over columns in ascending order
// by fused multiply-adds. Quantised weights have one accumulator per group of 32 (for kInt8 it
// starts at -128 times the sum of the group's x, as codes are q + 128); then total = fma(scale,
// group sum, total), for kInt4 also total = fma(min, sum of the group's x, total), groups
// ascending. No tile size, thread count or batch size enters the arithmetic.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"
#include "kernels/cpu/packed.h"

namespace kvern::cpu {

// Rows of x copied into the order the kernel reads: tiles of `tile_rows` rows, in each tile
// [k][tile_rows] float32; for quantised weights some columns times a power of two (see
// matmul_tile-inl.h). For kInt8 and kInt4 also the sums of each group of columns,
// [tile][k / 32][tile_rows]. The last tile has the size that suits the rows that are left; rows
// missing even there are anything.
struct PackedRows {
  int64_t rows = 0;
  int64_t tile_rows = 0;
  const float* values = nullptr;
  const float* group_sums = nullptr;
};

constexpr int64_t NumTiles(int64_t rows, int64_t tile_rows) {
  return (rows + tile_rows - 1) / tile_rows;
}

struct MatMulKernels {
  // The tile size to use for `rows` >= 1 rows.
  int64_t (*tile_rows)(int64_t rows);
  // True when the rows need no packing: values = x.
  bool (*reads_in_place)(Packing packing, int64_t rows);
  // Copies tile `tile` of x [rows, k] (row stride `stride` elements) into values + tile * k *
  // tile_rows, in the form that matrices of `packing` need.
  void (*pack_tile)(Packing packing, const float* x, int64_t stride, int64_t rows, int64_t k,
                    int64_t tile_rows, int64_t tile, float* values);
  // The group sums of a tile, into sums + tile * (k / 32) * tile_rows.
  void (*sum_groups)(const float* x, int64_t stride, int64_t rows, int64_t k, int64_t tile_rows,
                     int64_t tile, float* sums);
  // Floats of scratch memory that make products of more rows than a tile faster; may be 0.
  size_t (*weight_scratch)(Packing packing, int64_t k);
  // out[t, 16 * panel + lane] for panels [panel_begin, panel_end). bias: [n] or null. scratch: null
  // or weight_scratch(w.packing, w.k) > 0 floats of this thread's, aligned to 64 bytes.
  void (*multiply)(const PackedMatrix& w, const PackedRows& x, const float* bias, float* out,
                   int64_t out_stride, int64_t panel_begin, int64_t panel_end, float* scratch);
};

// REQUIRES: IsaSupported(isa).
const MatMulKernels& MatMulFor(Isa isa);

}  // namespace kvern::cpu
