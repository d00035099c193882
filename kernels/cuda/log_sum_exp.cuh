// Largest value and sum of exponentials of kSumColumns columns of a logits row. Block x: a part; y:
// a request. The columns stay in registers between the two.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"

namespace kvern::gpu {

inline constexpr int kSumThreads = 256;

KVERN_KERNEL(kSumThreads, LogSumExpKernel, LogitsArgs args, SumPart* out) {
  KVERN_SHARED(float, max_of_warps, kSumThreads / 32);
  KVERN_SHARED(double, sum_of_warps, kSumThreads / 32);
  constexpr int kSteps = kSumColumns / kSumThreads;
  const SampleRow request = args.requests[blockIdx.y];
  const float* logits = args.logits + request.row * args.stride;
  const float none = -__builtin_huge_valf();
  float x[kSteps];
  float max = none;
  KVERN_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    const int column =
        step * kSumThreads + static_cast<int>(blockIdx.x * kSumColumns + threadIdx.x);
    x[step] = column < args.columns ? logits[column] : none;
    max = fmaxf(max, x[step]);
  }
  max = BlockReduce<4>(max, Larger(), max_of_warps);
  const float scale = request.inverse_temperature * 1.44269504f;
  double sum = 0;
  KVERN_UNROLL
  for (int step = 0; step < kSteps; ++step) {
    // Columns of minus infinity, all of them perhaps, count nothing.
    if (x[step] != none) sum += static_cast<double>(Exp2((x[step] - max) * scale));
  }
  sum = BlockReduce<5>(sum, Add(), sum_of_warps);
  if (threadIdx.x == 0) {
    out[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = {max, sum};
  }
}

}  // namespace kvern::gpu
