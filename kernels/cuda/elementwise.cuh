// Which elements a thread has in a kernel whose threads need no neighbours: each has 16 bytes of
// what is written.
#pragma once

#include "kernels/cuda/language.cuh"

namespace kvern::gpu {

inline constexpr int kElementThreads = 128;

// The thread's index among those of its row (block x: the row), or of a flat array.
__device__ __forceinline__ int RowThread() {
  return static_cast<int>(blockIdx.y * kElementThreads + threadIdx.x);
}
__device__ __forceinline__ int64_t FlatThread() {
  return static_cast<int64_t>(blockIdx.x) * kElementThreads + threadIdx.x;
}

}  // namespace kvern::gpu
