// The ledger of one group: what the router has promised of its KV blocks.
//
// Invariants:
//  - guaranteed <= total at all times, so a guaranteed request always finds its worst case free;
//  - worst_case >= the sum of the worst cases the worker counts: a reservation starts before the
//    dispatch is sent and ends only after the worker has reported that it let go.
#pragma once

#include <cstdint>

#include "cluster/base/ring.h"

namespace kvern::router {

class Ledger {
 public:
  // `total_blocks` > 0. Every reservation is at least one block.
  explicit Ledger(uint64_t total_blocks);

  // Takes `blocks`, a request's worst case, for a dispatch that travels in command `sequence`.
  // REQUIRES: 0 < blocks <= total(); guaranteed() + blocks <= total() for a guaranteed one; and
  // sequences do not decrease.
  void Reserve(uint64_t sequence, uint64_t blocks, bool guaranteed);

  // The worker has applied all commands up to `sequence`.
  void Acknowledge(uint64_t sequence);

  // REQUIRES: blocks are reserved, and their dispatch is acknowledged.
  void Release(uint64_t blocks, bool guaranteed);

  // Reservations as of the acknowledged command minus the worker's own sum. Zero in a healthy
  // group.
  int64_t Drift(uint64_t worker_reserved) const;

  uint64_t total() const { return total_; }
  uint64_t worst_case() const { return worst_case_; }  // of all that runs
  uint64_t guaranteed() const { return guaranteed_; }  // of the guaranteed requests among it

 private:
  struct InFlight {
    uint64_t sequence = 0;
    uint64_t blocks = 0;
  };

  uint64_t total_;
  uint64_t worst_case_ = 0;
  uint64_t guaranteed_ = 0;
  uint64_t in_flight_blocks_ = 0;  // of dispatches the worker has not acknowledged
  Ring<InFlight> in_flight_;       // by command; each has a request, so there are fewer than blocks
};

}  // namespace kvern::router
