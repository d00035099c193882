// What attention kernels work on: the work lists, and the host code that cuts a step into them.
// Plain C++, no CUDA header.
//
// A query row is one token and one query head of a KV group: row = token * G + g. A block of
// threads takes one item for one KV head: a narrow item has one warp and up to 16 rows, a wide one
// four warps and up to 64. Keys are walked in splits cut at absolute multiples of 256 tokens; the
// result of a (row, split) pair has one order of sums wherever it is computed, and splits are
// merged in ascending order, in the block (an item that walks all its splits) or by the merge
// kernel (items of one split each, which write partial results to the workspace). So the planner
// below is free to cut as it likes: the bits do not change.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kvern::gpu {

inline constexpr int32_t kPageTokens = 16;
inline constexpr int32_t kSplitTokens = 256;

// Lists and counts are read when the kernel runs: a captured graph serves any lists that fit.
struct AttentionItem {
  int32_t first_row = 0;  // of q and out: the item's first token
  int32_t tokens = 0;     // consecutive tokens of one sequence; 0: padding, skipped
  int32_t position = 0;   // of the first token; token i sees keys [0, position + i]
  int32_t table = 0;      // index in block_tables of the sequence's first block
  int32_t split_begin = 0;
  int32_t split_end = 0;  // walks splits [begin, end); keys past the last token are not read
  // Slot of split 0 of the first token; token i, split s: partial + i * partial_stride + s.
  // partial_stride 0: the item walks all splits and writes `out` itself.
  int32_t partial = 0;
  int32_t partial_stride = 0;
};
struct AttentionMerge {
  int32_t row = 0;      // of out
  int32_t partial = 0;  // slots [partial, partial + splits), ascending; splits 0: skipped
  int32_t splits = 0;
  int32_t unused = 0;
};
struct AttentionCounts {
  int32_t narrow = 0;
  int32_t wide = 0;
  int32_t merges = 0;
  int32_t unused = 0;
};

// Empty when supported, else the words for the user: the value and what there is.
std::string AttentionUnsupported(int64_t head_dim, int64_t q_heads, int64_t kv_heads);

// A slot holds one token's partial results of one split, all its query heads.
size_t AttentionWorkspaceBytes(int64_t slots, int64_t q_heads, int64_t head_dim);

struct AttentionSequence {
  int32_t first_row = 0;
  int32_t start = 0;  // position of its first token in this step
  int32_t count = 0;  // tokens in this step
  int32_t table = 0;  // index in block_tables of its first block
};
struct AttentionBudget {
  int32_t blocks = 0;     // blocks that fill the device; 4 per multiprocessor is a good number
  int32_t max_slots = 0;  // of the workspace; 0: no item is cut
};
// Vectors are reused from step to step. slots: how many of the workspace are used, <= max_slots.
struct AttentionPlan {
  std::vector<AttentionItem> narrow;
  std::vector<AttentionItem> wide;
  std::vector<AttentionMerge> merges;
  int32_t slots = 0;
};
// Cuts a step into items, the longest first: tokens of a sequence become wide items, what is left
// (16 rows or fewer) a narrow one; an item much longer than a block's even share of the step is cut
// into its splits while the workspace lasts. Sizes to reserve for the lists of a step of T tokens:
// narrow and wide T + max_slots each, merges T.
// REQUIRES: AttentionUnsupported(...) is empty.
void PlanAttention(std::span<const AttentionSequence> sequences, int32_t q_heads, int32_t kv_heads,
                   const AttentionBudget& budget, AttentionPlan* plan);

}  // namespace kvern::gpu
