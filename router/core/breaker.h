// Keeps requests away from a group that fails them before it has said anything: it may look healthy
// and still be broken. After kThreshold such failures in a row the group gets nothing for a while,
// then one request at a time until one of them gets its first token. What a client did wrong never
// counts; the end of the group, whatever waited there for its first token, counts as one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cluster/base/time.h"

namespace kvern::router {

class Breaker {
 public:
  static constexpr uint32_t kThreshold = 3;
  static constexpr Duration kFirstPause = 1 * kSecond;
  static constexpr Duration kLongestPause = 60 * kSecond;

  // A request that ran on the group, or all of them at once, ended without a first token, by the
  // group's fault.
  void Failed(Time now) {
    if (failures_ < kThreshold + kDoublings) ++failures_;
    if (failures_ < kThreshold) return;
    Duration pause = kFirstPause << (failures_ - kThreshold);
    closed_until_ = now + std::min(pause, kLongestPause);
  }
  void FirstToken() { failures_ = 0; }

  uint32_t failures() const { return failures_; }  // in a row, up to those of the longest pause
  bool open() const { return failures_ >= kThreshold; }
  // May it get a request while `without_token` of its requests have no first token?
  bool Admits(Time now, uint64_t without_token) const {
    return !open() || (now >= closed_until_ && without_token == 0);
  }
  // When it may get one again; 0: now.
  Time closed_until() const { return open() ? closed_until_ : 0; }

 private:
  static constexpr uint32_t kDoublings = 6;  // 1 s << 6 is beyond the longest pause

  uint32_t failures_ = 0;  // in a row
  Time closed_until_ = 0;
};

}  // namespace kvern::router
