// What one simulated run is made of. Everything follows from these and nothing else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "cluster/capacity/step_cost.h"
#include "router/core/router.h"
#include "tools/sim/fake_model.h"
#include "tools/sim/faults.h"

namespace kvern::sim {

// A good request has its first token within `ttft` of being asked for, and takes at most `tpot` for
// each further one.
struct Slo {
  Duration ttft = 2 * kSecond;
  Duration tpot = 60 * kMillisecond;
};

// What clients declare: max_tokens, and how many of a thousand requests declare it.
struct Declared {
  uint32_t max_tokens = 0;
  uint32_t per_mille = 0;
  friend bool operator==(const Declared&, const Declared&) = default;
};

// How an OptimisticRouter admits, beside what fits into memory.
struct OptimisticAdmission {
  bool step_budget = false;           // no prompt starts while others fill about two steps
  uint64_t max_running = UINT64_MAX;  // requests of a group
};

struct SimOptions {
  uint64_t seed = 1;
  // ---- the service
  uint32_t groups = 1;
  uint32_t ranks = 1;
  uint64_t kv_blocks = 7500;  // of the smallest rank
  // Each group has so many per cent of the blocks of the one before it.
  uint32_t next_group_percent = 100;
  uint32_t extra_blocks = 0;  // larger ranks have up to that many more
  uint32_t batch_tokens = 1024;
  // As of a CPU. A GPU has two, so that the host's work takes no time of the GPU's; simulated, it
  // takes none at all.
  uint32_t plans_in_flight = 1;
  FakeModel model{.vocab = 128'256, .eos = 128'001, .length_in_seed = true};
  ModelCost model_cost;
  DeviceCost device_cost;
  RouterConfig router;
  bool least_requests = false;                    // LeastRequests stands in for the router
  std::optional<OptimisticAdmission> optimistic;  // an OptimisticRouter does
  bool has_text = false;                          // prompts may be text; one letter is a token
  bool half_give_credit = false;  // every other client says what its readers have taken

  // ---- the network
  Duration min_delay = 20 * kMicrosecond;  // of one message
  Duration max_delay = 200 * kMicrosecond;
  Duration router_turn = 100 * kMicrosecond;  // at most, from a message to the turn that reads it

  FaultLevels faults;

  // ---- the run
  Duration duration = 180 * kSecond;  // of the phase with load and faults
  Duration warm_up = 30 * kSecond;    // not measured
  Duration healing = 600 * kSecond;   // at most, until everything asked for has ended
  bool ask_at_end = false;            // whether the service then still answers
  bool cancel_at_end = false;         // clients give up what still waits when the load ends
  uint32_t always_waiting = 0;        // instead of arrivals: as many as that always wait
  uint64_t max_requests = UINT64_MAX;
  uint64_t full_check_every = 1000;  // events
  Slo slo;
};

}  // namespace kvern::sim
