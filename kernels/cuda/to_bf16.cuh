// Rounds float32 values to bf16, 8 a thread.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

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

}  // namespace kvern::gpu
