// Keys and values of one KV head, brought from the pages of a sequence into shared memory: a ring
// of kStages stages, each a tile of 32 keys and their values as bf16. cp.async keeps kStages - 1
// tiles in flight; a page's tokens of one head are contiguous, so a warp copies 512 contiguous
// bytes per instruction.
//
// A row of a tile is D elements = D / 8 chunks of 16 bytes. Chunks are swizzled so that the 8 rows
// that ldmatrix reads at once lie in 8 different groups of 4 banks.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/language.cuh"
#include "kernels/cuda/vectors.cuh"

namespace kvern::gpu {

// Wherever a stage is named. It has a number, as barriers have, so that a test can make it the next
// one and see that this is noticed.
#ifndef KVERN_WRONG_STAGE
#define KVERN_WRONG_STAGE -1
#endif
#define KVERN_STAGE(number, stage) \
  ((number) != KVERN_WRONG_STAGE ? (stage) : (stage) + 1 < kStages ? (stage) + 1 : 0)

inline constexpr int kTileKeys = 32;
inline constexpr int kStages = 3;
inline constexpr unsigned kAllLanes = 0xffffffffu;

constexpr int StageBytes(int dim) { return 2 * kTileKeys * dim * 2; }

// Index of a 16-byte chunk of row `key` in a tile.
template <int kDim>
__device__ __forceinline__ int ChunkIndex(int key, int chunk) {
  constexpr int kChunks = kDim / 8;
  constexpr int kRowsPerLine = kChunks < 8 ? 8 / kChunks : 1;  // rows in the 128 bytes of all banks
  constexpr int kMask = (kChunks < 8 ? kChunks : 8) - 1;
  return key * kChunks + (chunk ^ ((key / kRowsPerLine) & kMask));
}

__device__ __forceinline__ void CopyChunk(Vec16* target, const Bf16* source, bool valid) {
  CpAsync16(target, source, valid);
}
// float32 pages are rounded on the way, so they cannot be copied in the background.
__device__ __forceinline__ void CopyChunk(Vec16* target, const float* source, bool valid) {
  Vec16 packed = {};
  if (valid) {
    float x[8];
    LoadEight(source, x);
    packed = PackEight(x);
  }
  Store16(target, packed);
}

__device__ __forceinline__ int Lesser(int a, int b) { return a < b ? a : b; }

// Elements from one block to the next, from keys to values, from block 0 to the layer.
struct PageStrides {
  uint32_t page;
  int32_t value;
  int64_t layer;
};
constexpr PageStrides StridesOf(const KvPages& pages, int layer) {
  const int value = pages.kv_heads * kPageTokens * pages.head_dim;
  return {static_cast<uint32_t>(value) * 2 * static_cast<uint32_t>(pages.layers), value,
          static_cast<int64_t>(value) * 2 * layer};
}

// kThreads threads share the ring; all of them call everything.
template <typename Kv, int kDim, int kThreads>
class TileRing {
 public:
  __device__ __forceinline__ TileRing(const KvPages& pages, const PageStrides& strides,
                                      Vec16* stages)
      : pages_(pages), strides_(strides), stages_(stages) {}

  // Next: tiles from key `begin` (a multiple of 256) up to `end` keys of head `kv_head`. `table`:
  // the sequence's block ids.
  __device__ __forceinline__ void Start(int kv_head, const uint32_t* table, int begin, int end) {
    head_ = static_cast<const Kv*>(pages_.data) + strides_.layer + kPageTokens * kDim * kv_head;
    end_ = end;
    ids_ = LoadIds(table, begin / kWindowKeys);
    next_ids_ = begin % kWindowKeys == 0 ? ids_ : LoadIds(table, begin / kWindowKeys + 1);
  }

  // Starts copying the tile of keys [begin, begin + 32) into stage `stage`, or nothing when there
  // are none. Tiles come in ascending order.
  __device__ __forceinline__ void Issue(const uint32_t* table, int begin, int stage) {
    if (begin < end_) {
      if (begin % kWindowKeys == 0) {
        ids_ = next_ids_;
        next_ids_ = LoadIds(table, begin / kWindowKeys + 1);
      }
      const Kv* first = PageOf(begin / kPageTokens);
      const Kv* second = PageOf(begin / kPageTokens + 1);
      Vec16* tile = stages_ + stage * kStageChunks;
      KVERN_UNROLL_BY(4)
      for (int i = 0; i < kStageChunks / kThreads; ++i) {
        const int index = i * kThreads + static_cast<int>(threadIdx.x);
        const int row = index / kChunks;  // keys, then values
        const int key = row % kTileKeys;
        const int chunk = index % kChunks;
        const Kv* source = (key < kPageTokens ? first : second) +
                           (row < kTileKeys ? 0 : strides_.value) +
                           (key % kPageTokens * kDim + chunk * 8);
        CopyChunk(tile + ChunkIndex<kDim>(key, chunk) + (row - key) * kChunks, source,
                  begin + key < end_);
      }
    }
    CpAsyncCommit();
  }

  // Four 8x8 matrices of a tile, as B fragments of two neighbouring columns of 8 (b[0], b[1] and
  // b[2], b[3]), 16 deep. Scores: columns are keys first_key .. + 16, depth is dimensions
  // 16 * slice .. + 16. first_key: a multiple of 16.
  __device__ __forceinline__ void LoadKeys(int stage, int first_key, int slice,
                                           uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int chunk = ChunkIndex<kDim>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
    LdMatrixX4(b, stages_ + Advance(chunk, stage, first_key, slice));
  }
  // Sums of values: columns are dimensions 16 * slice .. + 16, depth is keys first_key .. + 16.
  __device__ __forceinline__ void LoadValues(int stage, int first_key, int slice,
                                             uint32_t (&b)[4]) const {
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int chunk = ChunkIndex<kDim>(lane % 16, lane / 16);
    LdMatrixX4Trans(b, stages_ + Advance(chunk, stage, kTileKeys + first_key, slice));
  }

 private:
  static constexpr int kChunks = kDim / 8;
  static constexpr int kStageChunks = 2 * kTileKeys * kChunks;
  static_assert(kStageChunks % kThreads == 0);
  // Each lane holds the block id of one page of a window of 32 pages; the next window's ids are
  // loaded 512 keys ahead, so that no copy waits for the block table.
  static constexpr int kWindowKeys = 32 * kPageTokens;

  // The swizzle repeats every 8 rows, and two chunks of a slice differ from those of slice 0 by an
  // exclusive or: one instruction per address, where a table of addresses would cost registers.
  static __device__ __forceinline__ int Advance(int chunk, int stage, int rows, int slice) {
    return ((chunk + stage * kStageChunks) ^ (2 * slice)) + rows * kChunks;
  }
  __device__ __forceinline__ uint32_t LoadIds(const uint32_t* table, int window) const {
    const int page = window * 32 + static_cast<int>(threadIdx.x % 32);
    return page * kPageTokens < end_ ? table[page] : 0;
  }
  __device__ __forceinline__ const Kv* PageOf(int page) const {
    const uint32_t id = __shfl_sync(kAllLanes, ids_, static_cast<unsigned>(page) % 32);
    return head_ + static_cast<uint64_t>(id) * strides_.page;
  }

  const KvPages& pages_;  // these two in the launch's parameters: no registers
  const PageStrides& strides_;
  Vec16* stages_;
  const Kv* head_ = nullptr;  // this head and layer in block 0
  int end_ = 0;
  uint32_t ids_ = 0;
  uint32_t next_ids_ = 0;
};

}  // namespace kvern::gpu
