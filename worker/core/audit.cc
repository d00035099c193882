// Scheduler::Audit: counts everything again from the sequences and compares with what is kept.
#include <algorithm>
#include <vector>

#include "cluster/base/check.h"
#include "worker/core/group_state.h"
#include "worker/core/scheduler.h"

namespace kvern {
namespace {

void AuditSequence(const GroupState& state, const Sequence& sequence) {
  KVERN_CHECK_LE(sequence.computed, sequence.length());
  KVERN_CHECK_LE(sequence.computed, sequence.table.size() * kBlockSize);
  KVERN_CHECK_LE(sequence.announced, sequence.table.size());
  if (sequence.slot) {
    KVERN_CHECK(state.by_slot[*sequence.slot] == &sequence);
  } else {
    KVERN_CHECK(sequence.table.empty() && sequence.computed == 0);
  }
}

// Checks one request and adds its holds to `holders`, by block.
void AuditRequest(const GroupState& state, const Request& request, std::vector<uint32_t>& holders) {
  KVERN_CHECK(!request.live.empty());
  std::vector<BlockId> distinct;
  for (const std::unique_ptr<Sequence>& sequence : request.live) {
    AuditSequence(state, *sequence);
    for (BlockId block : sequence->table) {
      KVERN_CHECK_LT(block, holders.size());
      ++holders[block];
      distinct.push_back(block);
    }
  }
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  KVERN_CHECK_LE(distinct.size(), request.reserved)
      << "request " << request.dispatch.request_id.ToString();
}

}  // namespace

void Scheduler::Audit() const {
  const GroupState& state = *state_;
  state.pool.Audit();
  std::vector<uint32_t> holders(state.config.num_blocks, 0);
  uint64_t reserved = 0;
  size_t running = 0;
  for (const Request* request : state.order) {
    AuditRequest(state, *request, holders);
    reserved += request->reserved;
    running += request->live.size();
  }
  for (size_t block = 0; block < holders.size(); ++block) {
    KVERN_CHECK_EQ(holders[block], state.pool.refs(static_cast<BlockId>(block)))
        << "block " << block;
  }
  KVERN_CHECK_EQ(state.order.size(), state.requests.size());
  KVERN_CHECK_EQ(reserved, state.reserved);
  KVERN_CHECK_EQ(running, state.running);
  KVERN_CHECK_LE(state.pool.used(), reserved);
  KVERN_CHECK_LE(reserved, state.config.num_blocks);
}

}  // namespace kvern
