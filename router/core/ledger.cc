#include "router/core/ledger.h"

#include "cluster/base/check.h"

namespace kvern::router {

Ledger::Ledger(uint64_t total_blocks) : total_(total_blocks), in_flight_(2 * total_blocks + 1) {}

void Ledger::Reserve(uint64_t sequence, uint64_t blocks, bool guaranteed) {
  KVERN_CHECK(blocks > 0);
  KVERN_CHECK_LE(blocks, total_);
  worst_case_ += blocks;
  if (guaranteed) guaranteed_ += blocks;
  KVERN_CHECK_LE(guaranteed_, total_);
  in_flight_blocks_ += blocks;
  if (!in_flight_.empty() && in_flight_[in_flight_.size() - 1].sequence == sequence) {
    in_flight_[in_flight_.size() - 1].blocks += blocks;
  } else {
    in_flight_.PushBack({sequence, blocks});
  }
}

void Ledger::Acknowledge(uint64_t sequence) {
  while (!in_flight_.empty() && in_flight_.front().sequence <= sequence) {
    in_flight_blocks_ -= in_flight_.PopFront().blocks;
  }
}

void Ledger::Release(uint64_t blocks, bool guaranteed) {
  KVERN_CHECK_LE(blocks + in_flight_blocks_, worst_case_);
  worst_case_ -= blocks;
  if (!guaranteed) return;
  KVERN_CHECK_LE(blocks, guaranteed_);
  guaranteed_ -= blocks;
}

int64_t Ledger::Drift(uint64_t worker_reserved) const {
  return static_cast<int64_t>(worst_case_ - in_flight_blocks_) -
         static_cast<int64_t>(worker_reserved);
}

}  // namespace kvern::router
