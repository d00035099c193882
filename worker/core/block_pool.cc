#include "worker/core/block_pool.h"

#include "cluster/base/check.h"

namespace kvern {

BlockId BlockPool::Allocate() {
  KVERN_CHECK_LT(used(), total_);
  if (free_.empty()) {
    refs_.push_back(1);
    return static_cast<BlockId>(refs_.size() - 1);
  }
  BlockId block = free_.back();
  free_.pop_back();
  refs_[block] = 1;
  return block;
}

void BlockPool::Ref(BlockId block) {
  KVERN_CHECK(refs(block) > 0) << "block " << block;
  ++refs_[block];
}

void BlockPool::Unref(BlockId block) {
  KVERN_CHECK(refs(block) > 0) << "block " << block;
  if (--refs_[block] == 0) free_.push_back(block);
}

void BlockPool::Audit() const {
  KVERN_CHECK_LE(refs_.size(), total_);
  uint64_t without_holder = 0;
  for (uint32_t count : refs_) {
    if (count == 0) ++without_holder;
  }
  KVERN_CHECK_EQ(without_holder, free_.size());
  for (BlockId block : free_) KVERN_CHECK_EQ(refs_[block], 0u);
}

}  // namespace kvern
