// Blocks of each pool of a group's KV memory.
//
// Layers that attend to all tokens share a pool whose blocks a request needs in proportion to its
// tokens. Layers of another kind (a sliding window) will have a pool of their own: blocks of one
// are no use to another, so what is reserved is a vector, and it fits if it fits in each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <ostream>

#include "cluster/base/check.h"

namespace kvern::router {

template <size_t kPools>
class BlocksOf {
 public:
  constexpr BlocksOf() = default;
  // Of the pool for all tokens; none of the others. Implicit, as with one pool that is all there
  // is.
  constexpr BlocksOf(uint64_t tokens_pool) : blocks_{tokens_pool} {}  // NOLINT(runtime/explicit)

  constexpr uint64_t of(size_t pool) const { return blocks_[pool]; }
  constexpr uint64_t& of(size_t pool) { return blocks_[pool]; }
  // Of the pool for all tokens: what messages, quotas and predictions count.
  constexpr uint64_t tokens_pool() const { return blocks_[0]; }

  // In no pool more than there.
  constexpr bool Within(const BlocksOf& room) const {
    for (size_t i = 0; i < kPools; ++i) {
      if (blocks_[i] > room.blocks_[i]) return false;
    }
    return true;
  }

  constexpr BlocksOf& operator+=(const BlocksOf& more) {
    for (size_t i = 0; i < kPools; ++i) blocks_[i] += more.blocks_[i];
    return *this;
  }
  // REQUIRES: less.Within(*this).
  BlocksOf& operator-=(const BlocksOf& less) {
    KVERN_CHECK(less.Within(*this)) << less << " of " << *this;
    for (size_t i = 0; i < kPools; ++i) blocks_[i] -= less.blocks_[i];
    return *this;
  }
  friend constexpr BlocksOf operator+(BlocksOf a, const BlocksOf& b) { return a += b; }
  friend constexpr bool operator==(const BlocksOf&, const BlocksOf&) = default;

  // In each pool the larger, or smaller, of both.
  friend constexpr BlocksOf Larger(BlocksOf a, const BlocksOf& b) {
    for (size_t i = 0; i < kPools; ++i) a.blocks_[i] = std::max(a.blocks_[i], b.blocks_[i]);
    return a;
  }
  friend constexpr BlocksOf Smaller(BlocksOf a, const BlocksOf& b) {
    for (size_t i = 0; i < kPools; ++i) a.blocks_[i] = std::min(a.blocks_[i], b.blocks_[i]);
    return a;
  }
  // `percent` of each, rounded down.
  constexpr BlocksOf Percent(uint64_t percent) const {
    BlocksOf part;
    for (size_t i = 0; i < kPools; ++i) part.blocks_[i] = blocks_[i] * percent / 100;
    return part;
  }

  friend std::ostream& operator<<(std::ostream& out, const BlocksOf& blocks) {
    for (size_t i = 0; i < kPools; ++i) out << (i == 0 ? "" : "+") << blocks.blocks_[i];
    return out;
  }

 private:
  std::array<uint64_t, kPools> blocks_ = {};
};

// All layers of the models that are served so far attend to all tokens.
using PoolBlocks = BlocksOf<1>;

}  // namespace kvern::router
