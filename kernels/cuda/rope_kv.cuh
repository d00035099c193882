// Rotary embedding of q, of k on its way into the paged cache, and v beside it. They come in
// float32, as the product left them, so that each is rounded once: a softmax is where an error in q
// or k tells most. A block per token; a thread has 8 pairs (i, i + D/2) of one head, or 8 columns
// of a v head.
//
// A cache of other elements (int8 with a scale per token and head) is one more StoreEight.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

inline constexpr int kRopeThreads = 128;

// Where column 0 of a head's token lies in the cache.
template <typename Kv>
__device__ __forceinline__ Kv* CachePlace(const RopeAndStoreKvArgs& args, int64_t slot, int value,
                                          int kv_head) {
  const KvPages& pages = args.pages;
  const int64_t run = (slot / kPageTokens * pages.layers + args.layer) * 2 + value;
  const int64_t token = (run * pages.kv_heads + kv_head) * kPageTokens + slot % kPageTokens;
  return static_cast<Kv*>(pages.data) + token * pages.head_dim;
}

// Pairs [column, column + 8) of query head `head`, or of KV head head - q_heads.
template <typename Kv>
__device__ __forceinline__ void RotatePart(const RopeAndStoreKvArgs& args, const float* row,
                                           int64_t slot, int head, int column) {
  const int dim = args.pages.head_dim;
  const int half = dim / 2;
  const int64_t angles = static_cast<int64_t>(args.positions[blockIdx.x]) * half + column;
  const float* source = row + head * dim + column;
  float low[8];
  float high[8];
  float cos[8];
  float sin[8];
  LoadEight(source, low);
  LoadEight(source + half, high);
  LoadEight(args.cos + angles, cos);
  LoadEight(args.sin + angles, sin);
  for (int i = 0; i < 8; ++i) {
    const float rotated = fmaf(low[i], cos[i], -(high[i] * sin[i]));
    high[i] = fmaf(high[i], cos[i], low[i] * sin[i]);
    low[i] = rotated;
  }
  if (head < args.q_heads) {
    Bf16* query = args.q + (static_cast<int64_t>(blockIdx.x) * args.q_heads + head) * dim + column;
    StoreEight(query, low);
    StoreEight(query + half, high);
  } else if (slot >= 0) {
    Kv* key = CachePlace<Kv>(args, slot, 0, head - args.q_heads) + column;
    StoreEight(key, low);
    StoreEight(key + half, high);
  }
}

template <typename Kv>
KVERN_KERNEL(kRopeThreads, RopeAndStoreKvKernel, RopeAndStoreKvArgs args) {
  const int dim = args.pages.head_dim;
  const int rotated_heads = args.q_heads + args.pages.kv_heads;
  const float* row =
      args.qkv + static_cast<int64_t>(blockIdx.x) * (rotated_heads + args.pages.kv_heads) * dim;
  const int64_t slot = args.slots[blockIdx.x];
  const int rotations = rotated_heads * (dim / 16);
  const int values = args.pages.kv_heads * (dim / 8);
  for (int part = static_cast<int>(threadIdx.x); part < rotations + values; part += kRopeThreads) {
    if (part < rotations) {
      RotatePart<Kv>(args, row, slot, part / (dim / 16), part % (dim / 16) * 8);
    } else if (slot >= 0) {
      const int head = (part - rotations) / (dim / 8);
      const int column = (part - rotations) % (dim / 8) * 8;
      float x[8];
      LoadEight(row + (rotated_heads + head) * dim + column, x);
      StoreEight(CachePlace<Kv>(args, slot, 1, head) + column, x);
    }
  }
}

}  // namespace kvern::gpu
