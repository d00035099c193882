// Host API of the kernels, the same for nvcc and for the emulated GPU.
//
// All pointers in an ...Args are device memory that the caller owns and keeps until the stream has
// run the kernel; the structs themselves are copied at the call (and into a captured graph). Every
// LaunchXxx enqueues on `stream`, never synchronises, never allocates, and may be captured. Zero
// rows or items launch nothing. Returns what the launch returned, or cudaErrorInvalidValue for a
// shape that a comment here excludes.
//
// Letters: T rows (tokens), H hidden, Q/KV query and KV heads of this rank, D head_dim, G = Q / KV.
// Rows are contiguous unless a stride (in elements) says otherwise, and start at a multiple of 16
// bytes. Results of a row depend on that row alone: never on T, on its neighbours, on chunking or
// on how work was cut into blocks.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/sampling_types.h"

namespace kvern::gpu {

struct Bf16;  // two bytes, kernels/cuda/language.cuh

// ---- Rows.

// out[t] = row (token_ids[t] - vocab_begin) of `table` as float32; zero when the token is outside
// [vocab_begin, vocab_begin + vocab_rows). H: a multiple of 8.
struct EmbedArgs {
  const uint32_t* token_ids = nullptr;  // [T]
  const Bf16* table = nullptr;          // [vocab_rows, H]
  int64_t vocab_begin = 0;
  int64_t vocab_rows = 0;
  int32_t rows = 0;  // T
  int32_t hidden = 0;
  float* out = nullptr;  // [T, H]
};
cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream);

// x += delta (unless delta is null), then out = x / sqrt(mean(x^2) + eps) * weight. cols: a
// multiple of 8, at most kMaxNormColumns. `out` must not overlap x or delta.
inline constexpr int32_t kMaxNormColumns = 16384;
struct RmsNormArgs {
  float* x = nullptr;             // [rows, cols]; written only when there is a delta
  const float* delta = nullptr;   // [rows, cols] or null
  const float* weight = nullptr;  // [cols]
  float eps = 0;
  int32_t rows = 0;
  int32_t cols = 0;
  Bf16* out = nullptr;  // [rows, cols]
};
cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream);

// out = silu(gate) * up, gate_up = [gate F | up F]. F: a multiple of 8.
struct SwiGluArgs {
  const Bf16* gate_up = nullptr;  // [rows, 2F]
  Bf16* out = nullptr;            // [rows, F]
  int32_t rows = 0;
  int32_t columns = 0;  // F
};
cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream);

// out[r] = x[rows[r]]. cols: a multiple of 4.
struct GatherRowsArgs {
  const float* x = nullptr;        // [*, cols]
  const int32_t* index = nullptr;  // [rows]
  int32_t rows = 0;
  int32_t cols = 0;
  float* out = nullptr;  // [rows, cols]
};
cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream);

// out[i] = bf16(in[i]), nearest even, NaN stays NaN.
struct ToBf16Args {
  const float* in = nullptr;
  Bf16* out = nullptr;
  int64_t count = 0;
};
cudaError_t LaunchToBf16(const ToBf16Args& args, cudaStream_t stream);

// out[i] = in[0][i] + in[1][i] + ... in rank order, in[r] = in + r * count. `out` may be in[0].
struct AddOrderedArgs {
  const float* in = nullptr;  // [ranks, count]
  int32_t ranks = 0;
  int64_t count = 0;     // a multiple of 4
  float* out = nullptr;  // [count]
};
cudaError_t LaunchAddOrdered(const AddOrderedArgs& args, cudaStream_t stream);

// ---- KV cache: [block][layer][K|V][kv_head][16 tokens][D]. Offsets are 64-bit.

// Copies blocks within the cache, all layers. REQUIRES: no block is the target of two pairs, or
// target of one and source of another. block_bytes: a multiple of 16.
struct BlockPair {
  uint32_t from = 0;
  uint32_t to = 0;
};
struct CopyBlocksArgs {
  void* data = nullptr;
  int64_t block_bytes = 0;
  const BlockPair* pairs = nullptr;  // [count]
  int32_t count = 0;
};
cudaError_t LaunchCopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream);

// Rotates q and k of qkv (pairs i, i + D/2), each rounded once: q goes to `q`, k and v go to the
// cache at slots[t] = block * 16 + offset, or nowhere when slots[t] < 0 (a row that pads a graph's
// batch). D: a multiple of 16.
struct RopeAndStoreKvArgs {
  const float* qkv = nullptr;           // [T, (Q + 2 KV) * D]
  Bf16* q = nullptr;                    // [T, Q * D]
  const uint32_t* positions = nullptr;  // [T]
  const int64_t* slots = nullptr;       // [T]
  const float* cos = nullptr;           // [max_seq_len, D / 2]
  const float* sin = nullptr;
  int32_t rows = 0;  // T
  int32_t q_heads = 0;
  int32_t layer = 0;
  KvPages pages;  // kv_heads, head_dim
};
cudaError_t LaunchRopeAndStoreKv(const RopeAndStoreKvArgs& args, cudaStream_t stream);

// ---- Attention: see attention_plan.h for items, splits and the planner.

// softmax(q k / sqrt(D)) v of every listed row over its sequence's cache, causal. Keys and values
// are rounded to bf16 on the way into the tensor cores when the cache is float32; products are
// bf16, sums float32. Slots of a page beyond the sequence may hold anything, NaN included.
// head_dim: 16, 32, 64 or 128. G: 1 to 16. q_stride, out_stride: multiples of 8.
// Three launches: narrow_blocks blocks of one warp over the narrow list, wide_blocks of four warps
// over the wide one, merge_blocks over the merges. Blocks stride over (item, KV head) or (merge,
// query head) pairs, so any number >= 1 works; 0 leaves a list out. Good numbers: items * KV heads,
// merges * Q * D / 512, in a graph no more than a few per multiprocessor.
struct AttentionArgs {
  const Bf16* q = nullptr;  // first Q * D columns of a row
  int64_t q_stride = 0;
  Bf16* out = nullptr;  // [*, Q * D]
  int64_t out_stride = 0;
  int32_t q_heads = 0;
  int32_t layer = 0;
  KvPages pages;
  const uint32_t* block_tables = nullptr;
  const AttentionItem* narrow = nullptr;
  const AttentionItem* wide = nullptr;
  const AttentionMerge* merges = nullptr;
  const AttentionCounts* counts = nullptr;
  int32_t narrow_blocks = 0;
  int32_t wide_blocks = 0;
  int32_t merge_blocks = 0;
  float* workspace = nullptr;  // AttentionWorkspaceBytes(workspace_slots, ...), 16-byte aligned
  int32_t workspace_slots = 0;
};
cudaError_t LaunchAttention(const AttentionArgs& args, cudaStream_t stream);

// ---- Sampling on this rank's columns of the logits (float32, rows `stride` elements apart).
// One request per row that wants the operation.

struct LogitsArgs {
  const float* logits = nullptr;
  int64_t stride = 0;
  int32_t columns = 0;
  const SampleRow* requests = nullptr;  // [count]
  int32_t count = 0;
};

// The min(k, columns) largest of each row, value descending, then column ascending; a NaN counts as
// minus infinity. k <= kMaxCandidates (for more, copy the row to the host).
cudaError_t LaunchTopCandidates(const LogitsArgs& args, int32_t k,
                                ScoredColumn* out /* [count, min(k, columns)] */,
                                cudaStream_t stream);

// Of columns [p * kSumColumns, ...) of each row: the largest value and the sum of
// exp((x - max) * inverse_temperature). out: [count, SumParts(columns)], folded on the host.
cudaError_t LaunchLogSumExp(const LogitsArgs& args, SumPart* out, cudaStream_t stream);

// The column with the largest float(logit * inverse_temperature + noise), the lowest of equal ones;
// the noise of a column follows from (key, first_id + column) alone, by the same operations as
// kernels/cpu/sampling.h, so both devices choose alike from equal logits. best: [count], set to
// zero by the launch, then read by ChosenColumn on the host (minus infinity, column 0 if all are
// NaN).
cudaError_t LaunchGumbelMax(const LogitsArgs& args, uint64_t first_id, uint64_t* best,
                            cudaStream_t stream);

}  // namespace kvern::gpu
