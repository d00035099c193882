// Merges the partial results of rows whose splits were computed apart, splits ascending. 4 columns
// per thread, kDim / 4 threads per (row, query head).
#pragma once

#include "kernels/cuda/attention_fold.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

inline constexpr int kMergeThreads = 128;

template <int kDim>
__device__ __forceinline__ void MergeRow(const AttentionArgs& args, const AttentionMerge& merge,
                                         int head, int column) {
  float max = kNoKeys;
  float sum = 0;
  float out[4] = {};
  // Loads of several splits at a time are in flight; the folds are in order.
  KVERN_UNROLL_BY(4)
  for (int split = 0; split < merge.splits; ++split) {
    const int64_t cell = static_cast<int64_t>(merge.partial + split) * args.q_heads + head;
    float next[4];
    LoadFour(PartialOut(args, cell) + column, next);
    const PartialState state = *StateOf(args, cell);
    const FoldWeights weights = WeighFold(max, state.max);
    max = weights.max;
    sum = FoldValue(weights, sum, state.sum);
    for (int i = 0; i < 4; ++i) out[i] = FoldValue(weights, out[i], next[i]);
  }
  const float factor = 1.0f / sum;
  auto* words =
      reinterpret_cast<uint32_t*>(args.out + merge.row * args.out_stride + head * kDim + column);
  words[0] = PackBf16(out[0] * factor, out[1] * factor);
  words[1] = PackBf16(out[2] * factor, out[3] * factor);
}

template <int kDim>
KVERN_KERNEL(kMergeThreads, AttentionMergeKernel, AttentionArgs args) {
  constexpr int kThreadsPerRow = kDim / 4;
  constexpr int kRowsPerBlock = kMergeThreads / kThreadsPerRow;
  const int row_in_block = static_cast<int>(threadIdx.x) / kThreadsPerRow;
  const int column = static_cast<int>(threadIdx.x) % kThreadsPerRow * 4;
  const int count = args.counts->merges * args.q_heads;
  for (int row = static_cast<int>(blockIdx.x) * kRowsPerBlock + row_in_block; row < count;
       row += static_cast<int>(gridDim.x) * kRowsPerBlock) {
    const AttentionMerge merge = args.merges[row / args.q_heads];
    if (merge.splits > 0) MergeRow<kDim>(args, merge, row % args.q_heads, column);
  }
}

}  // namespace kvern::gpu
