// Virtual time: small typed events in one heap, ordered by (time, order of scheduling).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
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

class EventQueue {
 public:
  Time now() const { return now_; }
  uint64_t executed() const { return executed_; }
  bool empty() const { return heap_.empty(); }
  // kTimeMax when empty.
  Time NextTime() const { return heap_.empty() ? kTimeMax : heap_.front().at; }

  // REQUIRES: at >= now().
  void Push(Time at, EventKind kind, uint32_t index, uint64_t value) {
    KVERN_CHECK_GE(at, now_);
    heap_.push_back({at, next_sequence_++, value, index, kind});
    std::push_heap(heap_.begin(), heap_.end(), Later());
  }

  // Takes the earliest event and moves the clock to it. REQUIRES: !empty().
  Event Pop() {
    std::pop_heap(heap_.begin(), heap_.end(), Later());
    Event event = heap_.back();
    heap_.pop_back();
    now_ = event.at;
    ++executed_;
    return event;
  }

 private:
  // A type, so that it is inlined into the heap's functions.
  struct Later {
    bool operator()(const Event& a, const Event& b) const {
      return a.at != b.at ? a.at > b.at : a.sequence > b.sequence;
    }
  };

  Time now_ = 0;
  uint64_t next_sequence_ = 0;
  uint64_t executed_ = 0;
  std::vector<Event> heap_;
};

// Values named by small numbers that are used again: what an event carries beside itself.
template <typename T>
class Slab {
 public:
  uint64_t Put(T value) {
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
    T value = std::move(slots_[slot]);
    slots_[slot] = T();
    free_.push_back(slot);
    return value;
  }

 private:
  std::vector<T> slots_;
  std::vector<size_t> free_;
};

}  // namespace kvern::sim
