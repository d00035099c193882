// Virtual time: small typed events, ordered by (time, order of scheduling).
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <queue>
#include <utility>
#include <vector>

#include "cluster/base/check.h"
#include "cluster/base/time.h"

namespace kvern::sim {

enum class EventKind : uint8_t {
  kCall,             // value: a function kept by the simulation
  kArrival,          // the workload's next request is asked for
  kFault,            // value: which
  kSample,           // the KV memory is looked at
  kRouterTurn,       // the router's loop runs; value: the time it was planned for
  kRouterReceives,   // value: a message under way
  kPeerReceives,     // value: a message under way
  kClientKeepAlive,  // index: client
  kClientResumes,    // index: client
  kClientCancels,    // index: client, value: request
  kClientTakes,      // index: client, value: request; its reader takes the next tokens
  kGroupStarts,      // index: group, value: its life
  kGroupStepEnds,    // index: group, value: its life
  kGroupHeartbeat,   // index: group, value: its life
  kGroupResumes,     // index: group, value: its life
  kGroupDies,        // index: group, value: its life
  kRankJoins,        // index: group, value: its life; the rank that was late
};

struct Event {
  Time at = 0;
  uint64_t sequence = 0;
  uint64_t value = 0;
  uint32_t index = 0;
  EventKind kind = EventKind::kCall;
};

// A wheel of slots before a heap, as most events are but milliseconds ahead. So it is known which
// come next, and not only the first.
class EventQueue {
 public:
  Time now() const { return now_; }
  uint64_t executed() const { return executed_; }
  bool empty() const { return next_.empty(); }
  // kTimeMax when empty.
  Time NextTime() const { return next_.empty() ? kTimeMax : next_.back().at; }
  // The `i`-th from now on, for asking for its memory; null: it is in a later slot, or there is
  // none.
  const Event* Soon(size_t i) const {
    return i < next_.size() ? &next_[next_.size() - 1 - i] : nullptr;
  }

  // REQUIRES: at >= now().
  void Push(Time at, EventKind kind, uint32_t index, uint64_t value) {
    KVERN_CHECK_GE(at, now_);
    Event event{at, next_sequence_++, value, index, kind};
    uint64_t slot = SlotOf(at);
    if (next_.empty()) slot_ = slot;
    if (slot <= slot_) {
      next_.insert(std::upper_bound(next_.begin(), next_.end(), event, Later()), event);
    } else if (slot < slot_ + kSlots) {
      wheel_[slot % kSlots].push_back(event);
      ++in_wheel_;
    } else {
      far_.push(event);
    }
  }

  // Takes the earliest event and moves the clock to it. REQUIRES: !empty().
  Event Pop() {
    Event event = next_.back();
    next_.pop_back();
    now_ = event.at;
    ++executed_;
    if (next_.empty()) Turn();
    return event;
  }

 private:
  // A type, so that it is inlined into the algorithms.
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
    }
  };
  static constexpr size_t kSlots = 256;
  static uint64_t SlotOf(Time at) { return static_cast<uint64_t>(at) >> 15; }  // 33 us

  // To the next slot that has any event.
  void Turn() {
    uint64_t next = UINT64_MAX;
    if (in_wheel_ > 0) {
      next = slot_ + 1;
      while (wheel_[next % kSlots].empty()) ++next;
    }
    if (!far_.empty()) next = std::min(next, SlotOf(far_.top().at));
    if (next == UINT64_MAX) return;
    slot_ = next;
    next_.swap(wheel_[next % kSlots]);
    in_wheel_ -= next_.size();
    for (; !far_.empty() && SlotOf(far_.top().at) == next; far_.pop()) next_.push_back(far_.top());
    std::sort(next_.begin(), next_.end(), Later());
  }

  Time now_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t executed_ = 0;
  std::vector<Event> next_;  // up to slot_, latest first; empty only when all is
  uint64_t slot_ = 0;
  std::array<std::vector<Event>, kSlots> wheel_;  // [slot % kSlots] of those after slot_
  size_t in_wheel_ = 0;
  std::priority_queue<Event, std::vector<Event>, Later> far_;  // beyond the wheel when pushed
};

// Values named by small numbers that are used again: what an event carries beside itself.
template <typename T>
class Slab {
 public:
  uint64_t Put(T&& value) {
    if (free_.empty()) {
      slots_.push_back(std::move(value));
      return slots_.size() - 1;
    }
    size_t slot = free_.back();
    free_.pop_back();
    slots_[slot] = std::move(value);
    return slot;
  }

  // REQUIRES: `slot` was put and not taken.
  T Take(uint64_t slot) {
    free_.push_back(slot);
    return std::move(slots_[slot]);
  }

 private:
  std::vector<T> slots_;
  std::vector<size_t> free_;
};

}  // namespace kvern::sim
