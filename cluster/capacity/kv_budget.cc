#include "cluster/capacity/kv_budget.h"

#include <algorithm>

namespace kvern {

absl::StatusOr<std::vector<ShardRange>> SplitKvHeads(uint32_t kv_heads, uint32_t world) {
  if (world == 0 || world > kv_heads) {
    return InvalidArgument("tensor-parallel size ", world, ", allowed: 1 to ", kv_heads,
                           " (the model's KV heads; replicated heads are not there yet)");
  }
  std::vector<ShardRange> ranges;
  uint32_t begin = 0;
  for (uint32_t rank = 0; rank < world; ++rank) {
    uint32_t size = kv_heads / world + (rank < kv_heads % world ? 1 : 0);
    ranges.push_back({begin, begin + size});
    begin += size;
  }
  return ranges;
}

uint64_t KvBytesPerToken(uint32_t layers, uint32_t kv_heads, uint32_t head_dim,
                         uint32_t element_bytes) {
  return uint64_t{2} * layers * kv_heads * head_dim * element_bytes;
}

uint64_t BlocksNeeded(uint64_t prompt_tokens, uint64_t max_new_tokens, uint64_t n,
                      uint32_t block_size) {
  uint64_t tail = prompt_tokens % block_size + max_new_tokens;
  return prompt_tokens / block_size + n * ((tail + block_size - 1) / block_size);
}

uint64_t TokensThatFit(uint64_t blocks, uint64_t prompt_tokens, uint64_t n, uint32_t block_size) {
  if (blocks < n) return 0;
  uint64_t shared = std::min(prompt_tokens / block_size, blocks - n);
  return (shared + (blocks - shared) / n) * block_size;
}

}  // namespace kvern
