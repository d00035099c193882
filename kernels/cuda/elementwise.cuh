// What needs no neighbour: gated activation, conversion, ordered sum, row gather. Each thread
// has 16 bytes of what is written. Block x: a row where there are rows; y: its columns.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

inline constexpr int kElementThreads = 128;

// The thread's index among the columns of its row, or among all elements of a flat array.
__device__ __forceinline__ int RowThread() {
  return static_cast<int>(blockIdx.y * kElementThreads + threadIdx.x);
}
__device__ __forceinline__ int64_t FlatThread() {
  return static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
}

KVERN_KERNEL(kElementThreads, SwiGluKernel, SwiGluArgs args) {
  const int column = 8 * RowThread();
  if (column >= args.columns) return;
  const int64_t row = blockIdx.x;
  const Bf16* source = args.gate_up + row * 2 * args.columns + column;
  float gate[8];
  float up[8];
  LoadEight(source, gate);
  LoadEight(source + args.columns, up);
  for (int i = 0; i < 8; ++i) {
    gate[i] = gate[i] / (1.0f + Exp2(gate[i] * -1.44269504f)) * up[i];
  }
  StoreEight(args.out + row * args.columns + column, gate);
}

KVERN_KERNEL(kElementThreads, GatherRowsKernel, GatherRowsArgs args) {
  const int column = 4 * RowThread();
  if (column >= args.cols) return;
  const int64_t source = args.index[blockIdx.x];
  Store16(args.out + static_cast<int64_t>(blockIdx.x) * args.cols + column,
          Load16(args.x + source * args.cols + column));
}

KVERN_KERNEL(kElementThreads, ToBf16Kernel, ToBf16Args args) {
  const int64_t first = FlatThread() * 8;
  if (first + 8 <= args.count) {
    float x[8];
    LoadEight(args.in + first, x);
    StoreEight(args.out + first, x);
  } else {
    for (int64_t i = first; i < args.count; ++i) args.out[i] = ToBf16(args.in[i]);
  }
}

KVERN_KERNEL(kElementThreads, AddOrderedKernel, AddOrderedArgs args) {
  const int64_t first = FlatThread() * 4;
  if (first >= args.count) return;
  float sum[4];
  LoadFour(args.in + first, sum);
  KVERN_UNROLL_BY(4)
  for (int rank = 1; rank < args.ranks; ++rank) {
    float x[4];
    LoadFour(args.in + rank * args.count + first, x);
    for (int i = 0; i < 4; ++i) sum[i] += x[i];
  }
  StoreFour(args.out + first, sum);
}

}  // namespace kvern::gpu
