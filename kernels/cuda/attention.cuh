// Causal attention over a paged KV cache, one kernel for prefill chunks and decode.
//
// A warp owns 16 query rows (row = token * G + g: the query heads of a KV group share its keys, so
// decode fills tensor cores too) and walks keys in tiles of 32: S = Q K^T, online softmax in
// registers, O += P V, all m16n8k16. Nothing is exchanged between warps but the tiles: a narrow
// item has one warp with a ring of its own, a wide one four warps (64 rows) that share the ring. So
// the sums of a (row, split) pair are in one order wherever the row lies: a masked key has weight 0
// exactly, and a tile that a row does not see leaves max, sum and O as they were.
//
// After FlashAttention-2 (Dao, 2023) and Flash-Decoding; the packing of query heads is known from
// FlashInfer.
#pragma once

#include "kernels/cuda/attention_fold.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/tile_ring.cuh"

namespace kvern::gpu {

inline constexpr int kWarpRows = 16;
// Accumulators of 8 columns of the output; fragments of 16 dimensions of Q.
template <int kDim>
inline constexpr size_t kOutTiles = static_cast<size_t>(kDim / 8);
template <int kDim>
inline constexpr size_t kSlices = static_cast<size_t>(kDim / 16);
template <int kDim>
inline constexpr float kInverseRoot = kDim == 16   ? 0.25f
                                      : kDim == 32 ? 0.176776695f
                                      : kDim == 64 ? 0.125f
                                                   : 0.0883883476f;

// Online softmax of the two rows (lane / 4 and lane / 4 + 8 of the warp's 16) that a lane has a
// part of: columns 8 j + lane % 4 * 2 and the next one, out[j] as an MMA accumulator. `sum` is over
// the lane's own keys until CloseSums.
template <int kDim>
struct Softmax {
  float max[2];
  float sum[2];
  float out[kOutTiles<kDim>][4];

  __device__ __forceinline__ void Clear() {
    for (int r = 0; r < 2; ++r) {
      max[r] = kNoKeys;
      sum[r] = 0;
    }
    KVERN_UNROLL
    for (int j = 0; j < kDim / 8; ++j) {
      for (int c = 0; c < 4; ++c) out[j][c] = 0;
    }
  }

  __device__ __forceinline__ void CloseSums() {
    for (int r = 0; r < 2; ++r) {
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
      sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
    }
  }

  // REQUIRES: closed sums on both sides.
  __device__ __forceinline__ void Fold(const Softmax& next) {
    for (int r = 0; r < 2; ++r) {
      const FoldWeights weights = WeighFold(max[r], next.max[r]);
      max[r] = weights.max;
      sum[r] = FoldValue(weights, sum[r], next.sum[r]);
      KVERN_UNROLL
      for (int j = 0; j < kDim / 8; ++j) {
        for (int c = 2 * r; c < 2 * r + 2; ++c) {
          out[j][c] = FoldValue(weights, out[j][c], next.out[j][c]);
        }
      }
    }
  }
};

// Where row lane / 4 + 8 * r of the warp lies. Rows past the item's last are given the last token's
// position, so that their scores stay finite, and are not written.
struct LaneRow {
  bool real;
  int token;     // of the item
  int position;  // of the token
  int head;      // query head
};
__device__ __forceinline__ LaneRow PlaceRow(const AttentionItem& item, int kv_head, int group,
                                            int r) {
  const int row = static_cast<int>(threadIdx.x / 32) * kWarpRows +
                  static_cast<int>(threadIdx.x % 32 / 4) + 8 * r;
  const bool real = row < item.tokens * group;
  const int token = real ? row / group : item.tokens - 1;
  return {real, token, item.position + token, kv_head * group + (real ? row % group : 0)};
}

// What the walk over keys must know of the rows.
struct Sight {
  int position[2];  // of the lane's rows, ascending
  int last;         // the greatest in the warp; -1 for a warp without rows
};
__device__ __forceinline__ Sight SightOf(const AttentionItem& item, int group) {
  const int warp_row = static_cast<int>(threadIdx.x / 32) * kWarpRows;
  const int rows = item.tokens * group;
  const int last_row = Lesser(warp_row + kWarpRows, rows) - 1;
  return {{PlaceRow(item, 0, group, 0).position, PlaceRow(item, 0, group, 1).position},
          warp_row < rows ? item.position + last_row / group : -1};
}

// Q of the warp's rows as A fragments; zeros in rows that are not real.
template <int kDim>
__device__ __forceinline__ void LoadQueries(const AttentionArgs& args, const AttentionItem& item,
                                            int kv_head, uint32_t (&q)[kSlices<kDim>][4]) {
  const int column = static_cast<int>(threadIdx.x % 4) * 2;
  for (int r = 0; r < 2; ++r) {
    const LaneRow row = PlaceRow(item, kv_head, args.q_heads / args.pages.kv_heads, r);
    const Bf16* source =
        args.q + (item.first_row + row.token) * args.q_stride + row.head * kDim + column;
    KVERN_UNROLL
    for (int k = 0; k < kDim / 16; ++k) {
      const auto* words = reinterpret_cast<const uint32_t*>(source + 16 * k);
      q[k][r] = row.real ? words[0] : 0;
      q[k][r + 2] = row.real ? words[4] : 0;
    }
  }
}

// s[j][c]: dot products of the warp's rows with keys 8 j + lane % 4 * 2 + c % 2 of the tile.
template <int kDim, typename Ring>
__device__ __forceinline__ void Scores(const Ring& ring, int stage,
                                       const uint32_t (&q)[kSlices<kDim>][4],
                                       float (&s)[kTileKeys / 8][4]) {
  KVERN_UNROLL
  for (int j = 0; j < kTileKeys / 8; ++j) {
    for (int c = 0; c < 4; ++c) s[j][c] = 0;
  }
  KVERN_UNROLL
  for (int k = 0; k < kDim / 16; ++k) {
    KVERN_UNROLL
    for (int j = 0; j < kTileKeys / 8; j += 2) {
      uint32_t b[4];
      ring.LoadKeys(stage, 8 * j, k, b);
      MmaBf16(s[j], q[k], {b[0], b[1]});
      MmaBf16(s[j + 1], q[k], {b[2], b[3]});
    }
  }
}

// Scores of keys that a row must not see become minus infinity. key: of the tile's first.
__device__ __forceinline__ void Mask(const Sight& sight, int key, float (&s)[kTileKeys / 8][4]) {
  const int column = key + static_cast<int>(threadIdx.x % 4) * 2;
  KVERN_UNROLL
  for (int j = 0; j < kTileKeys / 8; ++j) {
    for (int c = 0; c < 4; ++c) {
      if (column + 8 * j + c % 2 > sight.position[c / 2]) s[j][c] = kNoKeys;
    }
  }
}

// Turns scores into weights 2^(score * scale - max) and brings `state` to the new maximum.
template <int kDim>
__device__ __forceinline__ void Weigh(float scale, float (&s)[kTileKeys / 8][4],
                                      Softmax<kDim>& state) {
  float factor[2];
  for (int r = 0; r < 2; ++r) {
    float max = kNoKeys;
    KVERN_UNROLL
    for (int j = 0; j < kTileKeys / 8; ++j) {
      max = fmaxf(max, fmaxf(s[j][2 * r], s[j][2 * r + 1]));
    }
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 1));
    max = fmaxf(max, __shfl_xor_sync(kAllLanes, max, 2));
    max = fmaxf(max * scale, state.max[r]);
    // A row that has seen no key yet has weights 2^-infinity = 0, not NaN.
    const float base = max == kNoKeys ? 0 : max;
    factor[r] = Exp2(state.max[r] - base);
    float sum = 0;
    KVERN_UNROLL
    for (int j = 0; j < kTileKeys / 8; ++j) {
      for (int c = 2 * r; c < 2 * r + 2; ++c) {
        s[j][c] = Exp2(fmaf(s[j][c], scale, -base));
        sum += s[j][c];
      }
    }
    state.max[r] = max;
    state.sum[r] = fmaf(state.sum[r], factor[r], sum);
  }
  // Times 1 changes no bit, and after the first tiles most maxima stay.
  if (__any_sync(kAllLanes, factor[0] != 1 || factor[1] != 1)) {
    KVERN_UNROLL
    for (int j = 0; j < kDim / 8; ++j) {
      for (int c = 0; c < 4; ++c) state.out[j][c] *= factor[c / 2];
    }
  }
}

// out += weights * V. The accumulator layout of two 8-key columns is the A fragment of 16 keys.
template <int kDim, typename Ring>
__device__ __forceinline__ void AddValues(const Ring& ring, int stage,
                                          const float (&s)[kTileKeys / 8][4],
                                          Softmax<kDim>& state) {
  KVERN_UNROLL
  for (int k = 0; k < kTileKeys / 16; ++k) {
    const float(&low)[4] = s[2 * k];
    const float(&high)[4] = s[2 * k + 1];
    const uint32_t weights[4] = {PackBf16(low[0], low[1]), PackBf16(low[2], low[3]),
                                 PackBf16(high[0], high[1]), PackBf16(high[2], high[3])};
    KVERN_UNROLL
    for (int j = 0; j < kDim / 8; j += 2) {
      uint32_t b[4];
      ring.LoadValues(stage, 16 * k, j / 2, b);
      MmaBf16(state.out[j], weights, {b[0], b[1]});
      MmaBf16(state.out[j + 1], weights, {b[2], b[3]});
    }
  }
}

// One tile, its first key `key`.
template <int kDim, typename Ring>
__device__ __forceinline__ void AddTile(const Ring& ring, int stage, int key, const Sight& sight,
                                        const uint32_t (&q)[kSlices<kDim>][4],
                                        Softmax<kDim>& state) {
  // 1 / sqrt(D) for the softmax, log2(e) because powers are of 2.
  constexpr float kScale = 1.44269504f * kInverseRoot<kDim>;
  float s[kTileKeys / 8][4];
  Scores<kDim>(ring, stage, q, s);
  if (key + kTileKeys - 1 > sight.position[0]) Mask(sight, key, s);
  Weigh<kDim>(kScale, s, state);
  AddValues<kDim>(ring, stage, s, state);
}

// The result of one split: to the workspace.
template <int kDim>
__device__ __forceinline__ void StorePartial(const AttentionArgs& args, const AttentionItem& item,
                                             int kv_head, int split, const Softmax<kDim>& state) {
  const int lane_column = static_cast<int>(threadIdx.x % 4) * 2;
  for (int r = 0; r < 2; ++r) {
    const LaneRow row = PlaceRow(item, kv_head, args.q_heads / args.pages.kv_heads, r);
    if (!row.real || row.position < split * kSplitTokens) continue;
    const int64_t slot = item.partial + row.token * item.partial_stride + split;
    const int64_t cell = slot * args.q_heads + row.head;
    float* out = PartialOut(args, cell) + lane_column;
    KVERN_UNROLL
    for (int j = 0; j < kDim / 8; ++j) {
      StorePair(out + 8 * j, {state.out[j][2 * r], state.out[j][2 * r + 1]});
    }
    if (lane_column == 0) *StateOf(args, cell) = {state.max[r], state.sum[r]};
  }
}

// The result of all splits: divided by the sum, to `out`.
template <int kDim>
__device__ __forceinline__ void StoreOut(const AttentionArgs& args, const AttentionItem& item,
                                         int kv_head, const Softmax<kDim>& total) {
  const int lane_column = static_cast<int>(threadIdx.x % 4) * 2;
  for (int r = 0; r < 2; ++r) {
    const LaneRow row = PlaceRow(item, kv_head, args.q_heads / args.pages.kv_heads, r);
    if (!row.real) continue;
    const float factor = 1.0f / total.sum[r];
    Bf16* out =
        args.out + (item.first_row + row.token) * args.out_stride + row.head * kDim + lane_column;
    KVERN_UNROLL
    for (int j = 0; j < kDim / 8; ++j) {
      *reinterpret_cast<uint32_t*>(out + 8 * j) =
          PackBf16(total.out[j][2 * r] * factor, total.out[j][2 * r + 1] * factor);
    }
  }
}

// Walks one item for one KV head. `stage` is the ring's place, which goes on from item to item: the
// one barrier per tile then also keeps the next item's first copies off stages still being read.
// The item is read from memory again where it is needed: registers are short.
template <typename Kv, int kDim, int kWarps>
__device__ __forceinline__ void WalkItem(const AttentionArgs& args, const AttentionItem& item,
                                         int kv_head, TileRing<Kv, kDim, 32 * kWarps>& ring,
                                         int& stage) {
  const int begin = item.split_begin * kSplitTokens;
  const int end = Lesser(item.split_end * kSplitTokens, item.position + item.tokens);
  ring.Start(kv_head, args.block_tables + item.table, begin, end);
  for (int i = 0; i < kStages - 1; ++i) {
    ring.Issue(args.block_tables + item.table, begin + i * kTileKeys,
               KVERN_STAGE(1, (stage + i) % kStages));
  }

  const Sight sight = SightOf(item, args.q_heads / args.pages.kv_heads);
  uint32_t q[kSlices<kDim>][4];
  LoadQueries<kDim>(args, item, kv_head, q);
  Softmax<kDim> total;
  Softmax<kDim> state;
  total.Clear();
  state.Clear();
  KVERN_UNROLL_BY(1)
  for (int key = begin; key < end; key += kTileKeys) {
    CpAsyncWait<kStages - 2>();
    // This tile has landed for all threads, and none reads the one before it any more.
    if constexpr (kWarps == 1) {
      KVERN_SYNC_WARP(1);
    } else {
      KVERN_SYNC_THREADS(2);
    }
    ring.Issue(args.block_tables + item.table, key + (kStages - 1) * kTileKeys,
               KVERN_STAGE(2, (stage + kStages - 1) % kStages));
    if (key <= sight.last) AddTile<kDim>(ring, KVERN_STAGE(3, stage), key, sight, q, state);
    stage = KVERN_STAGE(4, (stage + 1) % kStages);
    const bool split_ends = (key + kTileKeys) % kSplitTokens == 0 || key + kTileKeys >= end;
    if (!split_ends || key / kSplitTokens * kSplitTokens > sight.last) continue;
    state.CloseSums();
    if (item.partial_stride == 0) {
      total.Fold(state);
    } else {
      StorePartial<kDim>(args, item, kv_head, key / kSplitTokens, state);
    }
    state.Clear();
  }
  if (item.partial_stride == 0) StoreOut<kDim>(args, item, kv_head, total);
}

template <typename Kv, int kDim, int kWarps>
KVERN_KERNEL(32 * kWarps, AttentionKernel, AttentionArgs args, PageStrides strides) {
  KVERN_DYNAMIC_SHARED(Vec16, stages);
  TileRing<Kv, kDim, 32 * kWarps> ring(args.pages, strides, stages);
  const AttentionItem* items = kWarps == 1 ? args.narrow : args.wide;
  const int count = kWarps == 1 ? args.counts->narrow : args.counts->wide;
  const int heads = args.pages.kv_heads;
  int stage = 0;
  for (int work = static_cast<int>(blockIdx.x); work < count * heads;
       work += static_cast<int>(gridDim.x)) {
    const AttentionItem& item = items[work / heads];
    if (item.tokens == 0) continue;
    WalkItem<Kv, kDim, kWarps>(args, item, work % heads, ring, stage);
  }
}

}  // namespace kvern::gpu
