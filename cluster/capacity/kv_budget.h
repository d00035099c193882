// The KV formula: bytes = 2 * layers * tokens * kv_heads * head_dim * bytes per element, counted in
// blocks of kBlockSize tokens. Router, worker and planner share these functions.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/base/status.h"

namespace kvern {

// A half-open range of heads, columns or rows that one rank holds.
struct ShardRange {
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t size() const { return end - begin; }
  friend bool operator==(const ShardRange&, const ShardRange&) = default;
};

// Splits `kv_heads` over `world` ranks as evenly as they go, the larger shares first: 3 over 2 = 2
// + 1. Query heads follow their KV head. InvalidArgument if world is 0 or exceeds kv_heads
// (replicated heads are not there yet).
absl::StatusOr<std::vector<ShardRange>> SplitKvHeads(uint32_t kv_heads, uint32_t world);

// KV bytes of one token on one rank: 2 * layers * kv_heads * head_dim * element_bytes.
uint64_t KvBytesPerToken(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                         uint32_t element_bytes);

// Blocks a request can come to: floor(prompt / B) + n * ceil((prompt mod B + max_new) / B). The
// whole prompt blocks are shared by its n choices. Arguments are bounded by the codec, so nothing
// overflows.
uint64_t BlocksNeeded(uint64_t prompt_tokens, uint64_t max_new_tokens, uint64_t n,
                      uint32_t block_size);

// The largest prompt + max_new of a request of n >= 1 choices and this prompt that fits into
// `blocks`. Where not one new token of each choice fits behind it, that of the longest prompt with
// which one does; 0 where there is none. With n = 1 it is the same for every prompt.
uint64_t TokensThatFit(uint64_t blocks, uint64_t prompt_tokens, uint64_t n, uint32_t block_size);

}  // namespace kvern
