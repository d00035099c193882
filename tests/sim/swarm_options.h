// What one run of the swarm is made of: everything follows from the seed.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/base/time.h"
#include "tools/sim/options.h"

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

struct SwarmOptions {
  SimOptions sim;
  uint32_t clients = 4;
  Duration mean_gap = 20 * kMillisecond;  // between two requests
  uint32_t max_prompt = 60;
  uint32_t max_output = 60;
  uint32_t guaranteed_percent = 50;  // the others are of class standard
  // Requests that the first client asks for, beside its share of the others: more than its tenant
  // has a right to.
  uint32_t greedy_percent = 0;
  // The first tenant has long prompts and short outputs, and the others the reverse.
  bool tenants_differ = false;
  // Requests of the second tenant need that many blocks, and those of the first a quarter at most,
  // so that they may pass; 0: as above.
  uint32_t giant_blocks = 0;
  // So many of a hundred prompts are so long that the router does not look at their ids.
  uint32_t long_percent = 0;
  Bug bug = Bug::kNone;
};

// A different mix of sizes, load and faults for each seed.
SwarmOptions DrawOptions(uint64_t seed);
std::string ToString(const SwarmOptions& options);

}  // namespace kvern::sim
