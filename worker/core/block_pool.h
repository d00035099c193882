// The numbers of a group's KV blocks: which are free, and how many sequences hold each of the
// others. Manages ids, not memory; the ranks own the memory behind them.
#pragma once

#include <cstdint>
#include <vector>

#include "schemas/plan_messages.h"

namespace kvern {

// Invariant: free + held = total. Deterministic: the block freed last is handed out first.
class BlockPool {
 public:
  explicit BlockPool(uint64_t total) : total_(total) {}

  // A free block, held once. REQUIRES: used() < total().
  BlockId Allocate();
  // One more holder. REQUIRES: held.
  void Ref(BlockId block);
  // One holder less; the last one frees the block. REQUIRES: held.
  void Unref(BlockId block);

  uint64_t total() const { return total_; }
  uint64_t used() const { return refs_.size() - free_.size(); }
  uint32_t refs(BlockId block) const { return block < refs_.size() ? refs_[block] : 0; }

  // Dies unless exactly the blocks of the free list, and those never handed out, have no holder.
  void Audit() const;

 private:
  uint64_t total_;
  std::vector<uint32_t> refs_;  // of every block ever handed out, [0, refs_.size())
  std::vector<BlockId> free_;   // those of them that are free again, last freed at the end
};

}  // namespace kvern
