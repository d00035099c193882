// Scheduler::Audit: counts everything again from the sequences and compares with what is kept.
#include <algorithm>
#include <vector>

#include "cluster/base/check.h"
#include "worker/core/group_state.h"
#include "worker/core/scheduler.h"

namespace kvern {
namespace {

// What is counted again.
struct Sums {
  std::vector<uint32_t> holders;  // by block
  uint64_t reserved = 0;
  uint64_t reserved_by_class = 0;
  uint64_t owed = 0;
  uint64_t committed = 0;
  uint64_t largest_standard = 0;          // worst case by class
  uint64_t largest_started_standard = 0;  // of those that are not guaranteed
  size_t requests = 0;
  size_t running = 0;
  size_t not_started = 0;
};

void AuditSequence(const GroupState& state, const Sequence& sequence) {
  KVERN_CHECK_LE(sequence.computed, sequence.length());
  KVERN_CHECK_LE(sequence.computed, sequence.table.size() * kBlockSize);
  KVERN_CHECK_LE(sequence.announced, sequence.table.size());
  const uint32_t max_tokens = sequence.request->dispatch.sampling.max_tokens;
  KVERN_CHECK_LT(sequence.output.size(), max_tokens);
  KVERN_CHECK_LE(sequence.output.size() + sequence.drawing, max_tokens);
  KVERN_CHECK_LE(sequence.drawing, state.in_flight.size());
  if (sequence.slot) {
    KVERN_CHECK(state.by_slot[*sequence.slot] == &sequence);
  } else {
    KVERN_CHECK(sequence.table.empty() && sequence.computed == 0 && !sequence.decoding);
  }
}

// What a request holds is within what it is committed, and that within its worst case.
void AuditBlocks(const GroupState& state, const Request& request, Sums& sums) {
  std::vector<BlockId> distinct;
  for (const std::unique_ptr<Sequence>& sequence : request.live) {
    AuditSequence(state, *sequence);
    for (BlockId block : sequence->table) {
      KVERN_CHECK_LT(block, sums.holders.size());
      ++sums.holders[block];
      distinct.push_back(block);
    }
  }
  std::sort(distinct.begin(), distinct.end());
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  KVERN_CHECK_EQ(distinct.size(), request.held) << request.dispatch.request_id.ToString();
  KVERN_CHECK_LE(request.held, request.committed) << request.dispatch.request_id.ToString();
  KVERN_CHECK_LE(request.committed, request.reserved) << request.dispatch.request_id.ToString();
}

void AuditRequest(const GroupState& state, const Request& request, bool started, Sums& sums) {
  KVERN_CHECK(!request.live.empty());
  AuditBlocks(state, request, sums);
  KVERN_CHECK_EQ(request.started, started);
  if (!started) KVERN_CHECK_EQ(request.committed, 0u);
  bool by_class = request.dispatch.service_class == ServiceClass::kGuaranteed;
  KVERN_CHECK_LE(request.preemptions, by_class ? 0 : kMaxPreemptions);
  KVERN_CHECK_EQ(request.guaranteed, by_class || request.preemptions == kMaxPreemptions);
  ++sums.requests;
  sums.reserved += request.reserved;
  sums.committed += request.committed;
  sums.running += request.live.size();
  if (!started) sums.not_started += request.live.size();
  if (by_class) sums.reserved_by_class += request.reserved;
  if (!by_class) sums.largest_standard = std::max(sums.largest_standard, request.reserved);
  if (!started) return;
  if (request.guaranteed) {
    sums.owed += request.reserved;
  } else {
    sums.largest_started_standard = std::max(sums.largest_started_standard, request.reserved);
  }
}

template <typename List>
void AuditList(const GroupState& state, const List& list, bool started, Sums& sums) {
  uint64_t youngest = 0;
  for (const Request* request : list) {
    KVERN_CHECK(request == list.front() || request->age > youngest) << "not ordered by age";
    youngest = request->age;
    AuditRequest(state, *request, started, sums);
  }
}

}  // namespace

void Scheduler::AuditSums() const {
  const GroupState& state = *state_;
  uint64_t held = 0;
  uint64_t committed = 0;
  uint64_t owed = 0;
  for (const Request* request : state.started) {
    KVERN_CHECK(request->held <= request->committed && request->committed <= request->reserved)
        << request->dispatch.request_id.ToString() << " holds " << request->held << " of "
        << request->committed << " blocks, worst case " << request->reserved;
    held += request->held;
    committed += request->committed;
    if (request->guaranteed) owed += request->reserved;
  }
  // No block belongs to two requests, and who waits holds none: free + held = total.
  KVERN_CHECK_EQ(held, state.pool.used());
  KVERN_CHECK_EQ(committed, state.committed);
  KVERN_CHECK_EQ(owed, state.owed);
  KVERN_CHECK_LE(committed, state.config.num_blocks);
}

void Scheduler::Audit() const {
  AuditSums();
  const GroupState& state = *state_;
  state.pool.Audit();
  Sums sums;
  sums.holders.assign(state.config.num_blocks, 0);
  AuditList(state, state.started, true, sums);
  AuditList(state, state.waiting, false, sums);
  AuditList(state, state.waiting_guaranteed, false, sums);
  for (size_t block = 0; block < sums.holders.size(); ++block) {
    KVERN_CHECK_EQ(sums.holders[block], state.pool.refs(static_cast<BlockId>(block)))
        << "block " << block;
  }
  KVERN_CHECK_EQ(sums.requests, state.requests.size());
  KVERN_CHECK_EQ(sums.reserved, state.reserved);
  KVERN_CHECK_EQ(sums.reserved_by_class, state.reserved_by_class);
  KVERN_CHECK_EQ(sums.owed, state.owed);
  KVERN_CHECK_EQ(sums.committed, state.committed);
  KVERN_CHECK_EQ(sums.running, state.running);
  KVERN_CHECK_EQ(sums.not_started, state.not_started);
  KVERN_CHECK_LE(state.pool.used(), state.committed);
  KVERN_CHECK_LE(state.committed, state.config.num_blocks);
  KVERN_CHECK_LE(sums.reserved_by_class + sums.largest_standard, state.config.num_blocks);
  KVERN_CHECK_LE(sums.owed + sums.largest_started_standard, state.config.num_blocks);
}

}  // namespace kvern
