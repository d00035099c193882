// How partial attention results of one row are merged, in ascending order of keys: the same
// arithmetic in the attention kernel and in the merge kernel, with every fused operation spelled
// out so that the bits do not depend on where the compiler sees it.
//
// A partial is (max, sum, out): the largest score times log2(e), the sum of 2^(score - max), and
// the values weighted by the same. An empty one is (-infinity, 0, 0) and changes nothing.
#pragma once

#include "kernels/cuda/language.cuh"
#include "kernels/cuda/launch.h"

namespace kvern::gpu {

inline constexpr float kNoKeys = -__builtin_huge_valf();

struct FoldWeights {
  float max;
  float total;
  float next;
};

// REQUIRES: not both are empty.
__device__ __forceinline__ FoldWeights WeighFold(float total_max, float next_max) {
  const float max = fmaxf(total_max, next_max);
  return {max, Exp2(total_max - max), Exp2(next_max - max)};
}

__device__ __forceinline__ float FoldValue(const FoldWeights& weights, float total, float next) {
  return fmaf(next, weights.next, total * weights.total);
}

// Cells of the workspace: one per (slot, query head). First all `out`, [cells, D], then all (max,
// sum).
struct alignas(8) PartialState {
  float max;
  float sum;
};
__device__ __forceinline__ float* PartialOut(const AttentionArgs& args, int64_t cell) {
  return args.workspace + cell * args.pages.head_dim;
}
__device__ __forceinline__ PartialState* StateOf(const AttentionArgs& args, int64_t cell) {
  const int64_t cells = static_cast<int64_t>(args.workspace_slots) * args.q_heads;
  return reinterpret_cast<PartialState*>(args.workspace + cells * args.pages.head_dim) + cell;
}

}  // namespace kvern::gpu
