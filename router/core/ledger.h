// The ledger of one group: what the router has promised of its KV blocks, pool by pool.
//
// Invariants:
//  - guaranteed is within total at all times, so a guaranteed request always finds its worst case
//  free;
//  - worst_case >= the sum of the worst cases the worker counts: a reservation starts before the
//    dispatch is sent and ends only after the worker has reported that it let go.
#pragma once

#include <cstdint>

#include "cluster/base/ring.h"
#include "router/core/pool_blocks.h"

namespace kvern::router {

class Ledger {
 public:
  // REQUIRES: some. Every reservation is at least one block of the pool for all tokens.
  explicit Ledger(const PoolBlocks& total);

  // Takes `blocks`, a request's worst case, for a dispatch that travels in command `sequence`.
  // REQUIRES: some, and within total(); guaranteed() + blocks too for a guaranteed one; and
  // sequences do not decrease.
  void Reserve(uint64_t sequence, const PoolBlocks& blocks, bool guaranteed);

  // The worker has applied all commands up to `sequence`.
  void Acknowledge(uint64_t sequence);

  // REQUIRES: blocks are reserved, and their dispatch is acknowledged.
  void Release(const PoolBlocks& blocks, bool guaranteed);

  // Reservations as of the acknowledged command minus the worker's own sum, of the pool for all
  // tokens: the only one that workers count so far. Zero in a healthy group.
  int64_t Drift(uint64_t worker_reserved) const;

  const PoolBlocks& total() const { return total_; }
  const PoolBlocks& worst_case() const { return worst_case_; }  // of all that runs
  const PoolBlocks& guaranteed() const { return guaranteed_; }  // of what is guaranteed among it

 private:
  struct InFlight {
    uint64_t sequence = 0;
    PoolBlocks blocks;
  };

  PoolBlocks total_;
  PoolBlocks worst_case_;
  PoolBlocks guaranteed_;
  PoolBlocks in_flight_blocks_;  // of dispatches the worker has not acknowledged
  Ring<InFlight> in_flight_;     // by command; each has a request, so there are fewer than blocks
};

}  // namespace kvern::router
