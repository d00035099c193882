// The sum of what the ranks have, float32, in the order of ranks: the same bits for any number of
// values. 4 a thread.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

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
