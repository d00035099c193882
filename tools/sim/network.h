// Connections between the router and its peers: messages of one direction arrive in order, each
// after a delay of its own. A connection can break (what is under way is lost), stand still in one
// direction or both, and be slow to read from.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cluster/base/rng.h"
#include "cluster/base/time.h"
#include "router/core/router.h"

namespace kvern::sim {

struct Direction {
  Time last = 0;           // when the newest message arrives
  Time blocked_until = 0;  // nothing arrives before
  Time slow_until = 0;     // until then, delays are `slowness` times as long
  uint32_t slowness = 1;
  Duration gap = 0;  // between two messages, while slow
};

struct Connection {
  bool is_group = false;
  uint32_t owner = 0;  // which group or client
  bool open = true;
  bool lose_tail = false;  // once closed, what was under way is lost
  uint32_t unread = 0;     // messages under way to the peer
  Direction up;            // to the router
  Direction down;
};

class Network {
 public:
  Network(Duration min_delay, Duration max_delay, Rng rng)
      : min_delay_(min_delay), max_delay_(max_delay), rng_(rng), connections_(1) {}

  PeerId Connect(bool is_group, uint32_t owner) {
    connections_.emplace_back();
    connections_.back().is_group = is_group;
    connections_.back().owner = owner;
    return connections_.size() - 1;
  }
  // REQUIRES: made by Connect.
  Connection& At(PeerId peer) { return connections_[peer]; }
  const Connection& At(PeerId peer) const { return connections_[peer]; }

  // When a message sent now arrives.
  Time Arrival(Time now, Direction& direction) {
    Duration delay = rng_.Between(min_delay_, max_delay_);
    Time earliest = direction.last;
    if (now < direction.slow_until) {
      delay *= direction.slowness;
      earliest += direction.gap;
    }
    direction.last = std::max({earliest, now + delay, direction.blocked_until});
    return direction.last;
  }

  Rng& rng() { return rng_; }

 private:
  Duration min_delay_;
  Duration max_delay_;
  Rng rng_;
  std::vector<Connection> connections_;  // [PeerId]; 0 is nobody
};

}  // namespace kvern::sim
