// All that the scheduler of one group remembers between calls, shared by its parts: admission
// (scheduler.cc) and the making of a step (step_builder.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/base/id_map.h"
#include "worker/core/block_pool.h"
#include "worker/core/scheduler.h"
#include "worker/core/sequence.h"

namespace kvern {

struct GroupState {
  explicit GroupState(const SchedulerConfig& config_in)
      : config(config_in), pool(config_in.num_blocks) {}

  SchedulerConfig config;
  BlockPool pool;
  IdMap<RequestId, std::unique_ptr<Request>> requests;
  std::vector<Request*> order;     // all requests, oldest first
  std::vector<Sequence*> by_slot;  // null: free, or released and not yet announced
  std::vector<Slot> free_slots;    // last freed at the end
  std::vector<Slot> to_release;    // of sequences that are over; the next plan says so
  std::vector<PlanRow> in_flight;  // rows of the plan that is not committed yet
  bool plan_in_flight = false;
  uint64_t step_id = 0;       // of the newest plan
  uint64_t samples_hash = 0;  // of the newest committed step
  uint64_t reserved = 0;      // sum over requests
  uint32_t running = 0;       // live choices of all requests

  // Frees the blocks of a live sequence and schedules the release of its slot.
  void DropSequence(Sequence& sequence);
  // Removes choice `index` of `request.live`; the request too, when that was its last one.
  // `request` may be gone on return.
  void EndSequence(Request& request, size_t index);
};

}  // namespace kvern
