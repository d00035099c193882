#include "router/core/ledger.h"

#include "cluster/base/check.h"

namespace kvern::router {

Ledger::Ledger(uint64_t total_blocks) : total_(total_blocks), in_flight_(total_blocks) {}

void Ledger::Reserve(uint64_t sequence, uint64_t blocks) {
  KVERN_CHECK(blocks > 0);
  KVERN_CHECK_LE(blocks, free());
  reserved_ += blocks;
  in_flight_blocks_ += blocks;
  in_flight_.PushBack({sequence, blocks});
}

void Ledger::Acknowledge(uint64_t sequence) {
  while (!in_flight_.empty() && in_flight_.front().sequence <= sequence) {
    in_flight_blocks_ -= in_flight_.PopFront().blocks;
  }
}

void Ledger::Release(uint64_t blocks) {
  KVERN_CHECK_LE(blocks + in_flight_blocks_, reserved_);
  reserved_ -= blocks;
}

int64_t Ledger::Drift(uint64_t worker_reserved) const {
  return static_cast<int64_t>(reserved_ - in_flight_blocks_) -
         static_cast<int64_t>(worker_reserved);
}

}  // namespace kvern::router
