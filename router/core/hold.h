// Why a request does not run now, as the decisions themselves say it: dispatch asks whether there
// is a hold, the status page puts it into words.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvern::router {

// In the order in which they are told: what may change soonest first. Behind each: value, limit.
enum class Why : uint8_t {
  kNone,

  // ---- the group has no room for it now
  kPeak,       // blocks that it would be expected to come to, its watermark
  kWorstCase,  // blocks that it would have to hold for certain, its blocks
  kPrefill,    // prompt tokens that it has yet to prefill, the most beside which more are sent
  kRunning,    // requests that it runs, the most; of the simulator's other policies

  // ---- the group takes no work
  kBreaker,   // ms until it may get one again, 0: it has one that must have its first token
  kSilent,    // ms without a report, the most
  kDraining,  // -
  kNotLive,   // -

  kTooSmall,  // blocks needed, blocks of the group

  // ---- whatever the groups say
  kQuota,   // blocks that its tenant runs, the most
  kPassed,  // requests that passed the head already, the most
  kLarge,   // blocks needed, the most to pass the head
  kAhead,   // tokens of service for its weight that its tenant has more than the least, the most
};

struct Hold {
  Why why = Why::kNone;
  uint64_t value = 0;
  uint64_t limit = 0;

  bool none() const { return why == Why::kNone; }
  // How far it is from being over, among those of the same kind.
  int64_t Excess() const { return static_cast<int64_t>(value) - static_cast<int64_t>(limit); }
};

}  // namespace kvern::router
