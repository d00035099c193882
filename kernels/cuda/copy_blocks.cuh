// Copies of KV blocks, all layers. Block y: a pair; x: 16 KiB of it.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

inline constexpr int kCopyThreads = 256;
inline constexpr int kCopySteps = 4;  // 16-byte loads in flight per thread
inline constexpr int64_t kCopyBytesPerBlock = 16 * kCopyThreads * kCopySteps;

KVERN_KERNEL(kCopyThreads, CopyBlocksKernel, CopyBlocksArgs args) {
  const BlockPair pair = args.pairs[blockIdx.y];
  const char* from = static_cast<const char*>(args.data) + pair.from * args.block_bytes;
  char* to = static_cast<char*>(args.data) + pair.to * args.block_bytes;
  const int64_t begin = blockIdx.x * kCopyBytesPerBlock + 16 * static_cast<int64_t>(threadIdx.x);
  Vec16 v[kCopySteps] = {};
  KVERN_UNROLL
  for (int step = 0; step < kCopySteps; ++step) {
    const int64_t offset = begin + step * 16 * kCopyThreads;
    if (offset < args.block_bytes) v[step] = Load16(from + offset);
  }
  KVERN_UNROLL
  for (int step = 0; step < kCopySteps; ++step) {
    const int64_t offset = begin + step * 16 * kCopyThreads;
    if (offset < args.block_bytes) Store16(to + offset, v[step]);
  }
}

}  // namespace kvern::gpu
