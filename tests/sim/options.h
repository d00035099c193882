// What one simulation is made of: everything follows from the seed.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/base/time.h"

namespace kvern::sim {

// A mistake put between the router and the world, to prove that the checks see it. Each names the
// check that must.
enum class Bug : uint8_t {
  kNone,
  kDropDelta,      // S1: a position is missing
  kRepeatDelta,    // S1: a position comes twice
  kSwapDeltas,     // S1: positions out of order
  kWrongToken,     // S1: another value
  kRepeatError,    // S3: two terminal answers
  kDropTerminal,   // L1: none
  kDropCancel,     // S5: blocks counted free that the worker still holds
  kLateDispatch,   // S7: started after its deadline
  kDeltaAfterEnd,  // S10: output after the cancel was acknowledged
};
inline constexpr Bug kLastBug = Bug::kDeltaAfterEnd;
// The name of the check, "S1" and the like.
std::string CheckThatSees(Bug bug);

struct SimOptions {
  uint64_t seed = 0;
  uint32_t groups = 1;
  uint32_t ranks = 1;
  uint64_t kv_blocks = 64;  // of the smallest rank
  uint32_t batch_tokens = 64;
  uint32_t clients = 4;
  Duration mean_gap = 20 * kMillisecond;  // between two requests
  uint32_t max_prompt = 60;
  uint32_t max_output = 60;
  uint32_t queue_entries = 16;
  uint64_t queue_bytes = 4096;
  Duration max_delay = 5 * kMillisecond;  // of one message
  Duration duration = 6 * kSecond;        // of the phase with faults
  // Faults: how many are expected in the whole run.
  uint32_t group_deaths = 0;
  uint32_t group_pauses = 0;
  uint32_t group_lies = 0;  // reports that break the protocol
  uint32_t client_deaths = 0;
  uint32_t client_pauses = 0;
  uint32_t cancel_percent = 0;  // of the requests
  bool replay_reports = false;  // some reports arrive twice
  Bug bug = Bug::kNone;
};

// A different mix of sizes, load and faults for each seed.
SimOptions DrawOptions(uint64_t seed);
std::string ToString(const SimOptions& options);

}  // namespace kvern::sim
