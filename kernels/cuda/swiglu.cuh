// Gated activation: silu(gate) * up of rows [gate, up], both bf16. Block x: a row; y: its columns,
// 8 a thread.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

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

}  // namespace kvern::gpu
