// When something of the router is due: one ordered set for requests, clients and groups.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <set>

#include "cluster/base/time.h"

namespace kvern::router {

enum class TimerKind : uint8_t { kRequest, kClient, kGroup };

// Whose: `high`, `low` are a request's id; else `low` is a PeerId or a group's number.
struct Timer {
  Time at = 0;
  TimerKind kind = TimerKind::kRequest;
  uint64_t high = 0;
  uint64_t low = 0;
  friend auto operator<=>(const Timer&, const Timer&) = default;
};

// At most one timer per request, client and group, so its size is bounded by theirs.
class Timers {
 public:
  void Add(const Timer& timer) { timers_.insert(timer); }
  void Remove(const Timer& timer) { timers_.erase(timer); }

  // kTimeMax when there is none.
  Time Next() const { return timers_.empty() ? kTimeMax : timers_.begin()->at; }

  // Takes the earliest timer with at <= now.
  std::optional<Timer> PopDue(Time now) {
    if (Next() > now || timers_.empty()) return std::nullopt;
    Timer timer = *timers_.begin();
    timers_.erase(timers_.begin());
    return timer;
  }

  size_t size() const { return timers_.size(); }

 private:
  std::set<Timer> timers_;
};

}  // namespace kvern::router
