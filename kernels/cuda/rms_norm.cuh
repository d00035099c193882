// RMSNorm of float32 rows into bf16, with the residual sum before it. A block per row, 8 columns
// per thread and step; the row stays in registers between the sum of squares and the scaling.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

inline constexpr int kNormThreads = 256;

// REQUIRES: cols <= 8 * kSteps * blockDim.x.
template <unsigned kSteps>
KVERN_KERNEL(kNormThreads, RmsNormKernel, RmsNormArgs args) {
  KVERN_SHARED(float, of_warps, kNormThreads / 32);
  const int64_t row = static_cast<int64_t>(blockIdx.x) * args.cols;
  float x[kSteps][8];
  float squares = 0;
  KVERN_UNROLL
  for (unsigned step = 0; step < kSteps; ++step) {
    const int column = 8 * static_cast<int>(step * blockDim.x + threadIdx.x);
    if (column >= args.cols) break;
    LoadEight(args.x + row + column, x[step]);
    if (args.delta != nullptr) {
      float delta[8];
      LoadEight(args.delta + row + column, delta);
      for (int i = 0; i < 8; ++i) x[step][i] += delta[i];
      StoreEight(args.x + row + column, x[step]);
    }
    for (int i = 0; i < 8; ++i) squares = fmaf(x[step][i], x[step][i], squares);
  }
  const float sum = BlockReduce<3>(squares, Add(), of_warps);
  const float factor = 1.0f / sqrtf(sum / static_cast<float>(args.cols) + args.eps);
  KVERN_UNROLL
  for (unsigned step = 0; step < kSteps; ++step) {
    const int column = 8 * static_cast<int>(step * blockDim.x + threadIdx.x);
    if (column >= args.cols) break;
    float weight[8];
    LoadEight(args.weight + column, weight);
    for (int i = 0; i < 8; ++i) x[step][i] = x[step][i] * factor * weight[i];
    StoreEight(args.out + row + column, x[step]);
  }
}

}  // namespace kvern::gpu
