// Copies float32 rows by index. Block x: a row of the result; y: its columns, 4 a thread.
#pragma once

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

KVERN_KERNEL(kElementThreads, GatherRowsKernel, GatherRowsArgs args) {
  const int column = 4 * RowThread();
  if (column >= args.cols) return;
  const int64_t source = args.index[blockIdx.x];
  Store16(args.out + static_cast<int64_t>(blockIdx.x) * args.cols + column,
          Load16(args.x + source * args.cols + column));
}

}  // namespace kvern::gpu
