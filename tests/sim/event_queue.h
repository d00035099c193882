// Virtual time: one queue of actions, ordered by (time, order of scheduling).
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/base/time.h"

namespace kvern::sim {

class EventQueue {
 public:
  Time now() const { return now_; }
  uint64_t executed() const { return executed_; }
  bool empty() const { return events_.empty(); }
  // kTimeMax when empty.
  Time NextTime() const { return events_.empty() ? kTimeMax : events_.top().at; }

  // REQUIRES: at >= now().
  void At(Time at, std::function<void()> action) {
    KVERN_CHECK_GE(at, now_);
    events_.push({at, next_sequence_++, std::move(action)});
  }
  void After(Duration delay, std::function<void()> action) { At(now_ + delay, std::move(action)); }

  // Runs the earliest action. REQUIRES: !empty().
  void RunNext() {
    Event event = events_.top();
    events_.pop();
    now_ = event.at;
    ++executed_;
    event.action();
  }

 private:
  struct Event {
    Time at = 0;
    uint64_t sequence = 0;
    std::function<void()> action;
    bool operator<(const Event& other) const {  // the queue's top is the largest
      return std::pair(at, sequence) > std::pair(other.at, other.sequence);
    }
  };

  Time now_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t executed_ = 0;
  std::priority_queue<Event> events_;
};

// One direction of a connection: messages arrive in order, each after a delay of its own.
class Link {
 public:
  // When a message sent now arrives.
  Time Arrival(Time now, Duration delay) { return last_ = std::max(last_, now + delay); }

 private:
  Time last_ = 0;
};

}  // namespace kvern::sim
