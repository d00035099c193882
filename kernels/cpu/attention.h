// Causal attention over a paged KV cache, one kernel for prefill and decode. A query row is one
// token and one query head of a KV group; keys are taken in splits cut at absolute multiples of 256
// tokens. For each row and split: scores (dot products over dimensions in ascending order), their
// maximum, weights e^(score - max), their sum over 16 lanes, the weighted sum of values in
// ascending token order. Splits are merged in ascending order. So a row's result depends on its own
// position and history alone: not on chunking, on neighbouring rows or on who computes which split.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"

namespace kvern::cpu {

inline constexpr int64_t kSplitTokens = 256;
inline constexpr int64_t kPageTokens = 16;
inline constexpr int64_t kMaxHeadDim = 256;
// Rows (tokens * heads of the group) of one call, at most: bounds the scratch memory.
inline constexpr int64_t kMaxAttentionRows = 96;
// Pages of keys that are scored at a time, at most: likewise.
inline constexpr int64_t kMaxScorePages = 2;

// Some consecutive tokens of one sequence against one KV head.
struct AttentionRows {
  const float* q = nullptr;  // token t, head g of the group: q + t * q_stride + g * head_dim
  int64_t q_stride = 0;
  float* out = nullptr;  // likewise
  int64_t out_stride = 0;
  int64_t start = 0;     // position of token 0; it sees keys [0, start]
  int64_t tokens = 0;    // tokens * group <= kMaxAttentionRows
  int64_t group = 0;     // query heads per KV head
  int64_t head_dim = 0;  // even, <= kMaxHeadDim

  // Keys and values of this head and layer: token p is at pages + block_table[p / 16] * page_stride
  // + (p % 16) * head_dim elements; its value value_offset further. Up to 15 elements past the end
  // of a value are read.
  const void* pages = nullptr;
  bool bf16 = false;  // otherwise float32
  int64_t page_stride = 0;
  int64_t value_offset = 0;
  const uint32_t* block_table = nullptr;
};

constexpr int64_t PaddedHeadDim(int64_t head_dim) { return (head_dim + 15) / 16 * 16; }

// Results of rows over some of their keys; row = t * group + g.
struct AttentionPartial {
  float* max = nullptr;  // [rows], minus infinity: no keys yet
  float* sum = nullptr;  // [rows]
  float* out = nullptr;  // [rows, PaddedHeadDim], not yet divided by the sum
};
// Floats of a partial for `rows` rows, and the partial laid out in memory of that size, which must
// be aligned to 64 bytes.
constexpr size_t PartialFloats(int64_t rows, int64_t head_dim) {
  return static_cast<size_t>(PaddedHeadDim(rows) * 2 + rows * PaddedHeadDim(head_dim));
}
AttentionPartial PartialIn(float* memory, int64_t rows);

// Floats of scratch memory that split() needs, aligned to 64 bytes.
size_t AttentionScratchFloats(int64_t head_dim);

struct AttentionKernels {
  // Overwrites `partial` with the result of keys [256 * split, 256 * split + 256). Rows that see
  // none of them get max = minus infinity.
  void (*split)(const AttentionRows& rows, int64_t split, float* scratch,
                const AttentionPartial& partial);
  // total = total merged with `next`, which holds later keys. At first `total` is split 0's.
  void (*merge)(int64_t rows, int64_t head_dim, const AttentionPartial& next,
                const AttentionPartial& total);
  // Writes out / sum to rows.out.
  void (*finish)(const AttentionRows& rows, const AttentionPartial& total);
};

// REQUIRES: IsaSupported(isa).
const AttentionKernels& AttentionFor(Isa isa);

}  // namespace kvern::cpu
