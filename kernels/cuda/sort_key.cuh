// Logits as integers that compare as candidates do: the greater key is the better candidate.
#pragma once

#include "kernels/cuda/sampling_types.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

// Larger value first, then the lower column; unlike for any two columns. A NaN counts as minus
// infinity, -0 as 0. Never 0.
__device__ __forceinline__ uint64_t SortKey(float value, uint32_t column) {
  const uint32_t bits = FloatBits(value != value ? -__builtin_huge_valf() : value + 0.0f);
  const uint32_t ordered = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
  return static_cast<uint64_t>(ordered) << 32 | static_cast<uint32_t>(~column);
}

}  // namespace kvern::gpu
