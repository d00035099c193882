#include "router/core/ledger.h"

#include "cluster/base/check.h"

namespace kvern::router {

Ledger::Ledger(const PoolBlocks& total) : total_(total), in_flight_(2 * total.tokens_pool() + 1) {}

void Ledger::Reserve(uint64_t sequence, const PoolBlocks& blocks, bool guaranteed) {
  KVERN_CHECK(blocks.tokens_pool() > 0);
  KVERN_CHECK(blocks.Within(total_)) << blocks << " of " << total_;
  worst_case_ += blocks;
  if (guaranteed) guaranteed_ += blocks;
  KVERN_CHECK(guaranteed_.Within(total_)) << guaranteed_ << " of " << total_;
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

void Ledger::Release(const PoolBlocks& blocks, bool guaranteed) {
  KVERN_CHECK((blocks + in_flight_blocks_).Within(worst_case_))
      << blocks << " and " << in_flight_blocks_ << " under way, of " << worst_case_;
  worst_case_ -= blocks;
  if (!guaranteed) return;
  guaranteed_ -= blocks;
}

int64_t Ledger::Drift(uint64_t worker_reserved) const {
  return static_cast<int64_t>(worst_case_.tokens_pool() - in_flight_blocks_.tokens_pool()) -
         static_cast<int64_t>(worker_reserved);
}

}  // namespace kvern::router
