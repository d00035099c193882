// Embedding rows of this rank's vocabulary shard. Block x: a token; y: 8 columns per thread.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

inline constexpr int kRowThreads = 128;

KVERN_KERNEL(kRowThreads, EmbedKernel, EmbedArgs args) {
  const int column = 8 * static_cast<int>(blockIdx.y * kRowThreads + threadIdx.x);
  if (column >= args.hidden) return;
  const int64_t row = args.token_ids[blockIdx.x] - args.vocab_begin;
  float x[8] = {};
  if (row >= 0 && row < args.vocab_rows) LoadEight(args.table + row * args.hidden + column, x);
  StoreEight(args.out + static_cast<int64_t>(blockIdx.x) * args.hidden + column, x);
}

}  // namespace kvern::gpu
