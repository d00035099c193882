// Sums and maxima over a warp or a block, in a fixed order. All threads of the block call them and
// get the same result.
#pragma once

#include "kernels/cuda/language.cuh"

namespace kvern::gpu {

struct Add {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Larger {
  template <typename T>
  __device__ __forceinline__ T operator()(T a, T b) const {
    return a < b ? b : a;
  }
};

template <typename T, typename Op>
__device__ __forceinline__ T WarpReduce(T value, Op op) {
  KVERN_UNROLL
  for (unsigned offset = 16; offset > 0; offset /= 2) {
    value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// `of_warps`: shared, one per warp, used by this call alone.
template <int kBarrier, typename T, typename Op>
__device__ __forceinline__ T BlockReduce(T value, Op op, T* of_warps) {
  value = WarpReduce(value, op);
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  KVERN_SYNC_THREADS(kBarrier);
  T result = of_warps[0];
  for (unsigned warp = 1; warp < blockDim.x / 32; ++warp) result = op(result, of_warps[warp]);
  return result;
}

}  // namespace kvern::gpu
