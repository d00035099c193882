// All that the scheduler of one group remembers between calls, shared by its parts: admission
// (scheduler.cc), who has blocks (room.cc) and the making of a step (step_builder.cc).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "cluster/base/id_map.h"
#include "cluster/base/ring.h"
#include "worker/core/block_pool.h"
#include "worker/core/scheduler.h"
#include "worker/core/sequence.h"

namespace kvern {

// A plan that is not committed yet: the ranks may have executed it, or not even begun.
struct PlanInFlight {
  struct Row {
    Sequence* sequence = nullptr;  // kept until the commit, over or not
    Slot slot = 0;                 // at the time of the plan
    bool sample = false;
  };
  uint64_t step_id = 0;
  Time planned_at = 0;
  std::vector<Row> rows;
  uint64_t prefill_tokens = 0;                  // of rows that are not decodes
  uint64_t recomputed_tokens = 0;               // of those
  std::vector<std::unique_ptr<Sequence>> over;  // ended while this was the newest plan in flight
};

// Every request is in exactly one of `started`, `waiting` and `waiting_guaranteed`; each is ordered
// by age, oldest first.
struct GroupState {
  explicit GroupState(const SchedulerConfig& config_in)
      : config(config_in), pool(config_in.num_blocks), in_flight(config_in.plans_in_flight) {}

  SchedulerConfig config;
  BlockPool pool;
  IdMap<RequestId, std::unique_ptr<Request>> requests;
  std::vector<Request*> started;
  std::deque<Request*> waiting;             // standard: not started yet, or preempted
  std::deque<Request*> waiting_guaranteed;  // by class: until the next plan, as a rule
  uint64_t next_age = 0;
  std::vector<Sequence*> by_slot;  // null: free, or released and not yet announced
  std::vector<Slot> free_slots;    // last freed at the end
  std::vector<Slot> to_release;    // of sequences that are over or preempted; the next plan says so

  Ring<PlanInFlight> in_flight;               // oldest first
  std::vector<PlanInFlight::Row> spare_rows;  // of one that was committed, for its memory
  Time committed_at = 0;                      // the newest commit
  uint64_t step_id = 0;                       // of the newest plan
  uint64_t samples_hash = 0;                  // of the newest committed step

  uint64_t reserved = 0;           // sum over requests
  uint64_t reserved_by_class = 0;  // of it, those of class guaranteed
  uint64_t owed = 0;               // of it, started ones that are guaranteed: never taken from them
  uint64_t committed = 0;          // sum over started requests; at most the pool
  uint32_t running = 0;            // live choices of all requests
  uint32_t not_started = 0;        // of them, those of requests that wait

  Duration step_time = 0;  // totals, see StepReport
  uint64_t prefill_tokens = 0;
  uint64_t preemptions = 0;
  uint64_t recomputed_tokens = 0;

  // Scratch of RoomMaker and StepBuilder, kept for its memory.
  std::vector<std::pair<Request*, uint64_t>> growing;  // and the blocks that each wants
  std::vector<Sequence*> prefills;
  std::vector<uint32_t> chunks;
  std::vector<size_t> shortest;

  // Null: there is none.
  const Request* Oldest() const;
  // Puts a request that does not hold blocks into its list.
  void AddWaiting(Request& request);
  // A free block for one of the request's tables. REQUIRES: it holds fewer than it is committed.
  BlockId Allocate(Request& request);
  void Unref(Request& request, BlockId block);
  // Frees the blocks of a live sequence and schedules the release of its slot.
  void DropSequence(Sequence& sequence);
  // Removes choice `index` of `request.live`; the request too, when that was its last one.
  // `request` may be gone on return. Its blocks are free at once: ranks execute plans in order, so
  // whoever gets them next writes after the plans in flight have.
  void EndSequence(Request& request, size_t index);
};

}  // namespace kvern
