// Connections between the router and its peers: messages of one direction arrive in order, each
// after a delay of its own.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cluster/base/rng.h"
#include "cluster/base/time.h"
#include "router/core/router.h"

namespace kvern::sim {

struct Connection {
  bool is_group = false;
  uint32_t owner = 0;  // which group or client
  bool open = true;
  bool lose_tail = false;  // once closed, what was under way is lost
  Time last_up = 0;        // when the newest message to the router arrives
  Time last_down = 0;      // likewise to the peer
};

class Network {
 public:
  Network(Duration min_delay, Duration max_delay, Rng rng)
      : min_delay_(min_delay), max_delay_(max_delay), rng_(rng), connections_(1) {}

  PeerId Connect(bool is_group, uint32_t owner) {
    connections_.push_back({is_group, owner});
    return connections_.size() - 1;
  }
  // REQUIRES: made by Connect.
  Connection& At(PeerId peer) { return connections_[peer]; }

  // When a message sent now arrives.
  Time ArrivalAtRouter(Time now, PeerId peer) { return Arrival(now, At(peer).last_up); }
  Time ArrivalAtPeer(Time now, PeerId peer) { return Arrival(now, At(peer).last_down); }

  Rng& rng() { return rng_; }

 private:
  Time Arrival(Time now, Time& last) {
    last = std::max(last, now + rng_.Between(min_delay_, max_delay_));
    return last;
  }

  Duration min_delay_;
  Duration max_delay_;
  Rng rng_;
  std::vector<Connection> connections_;  // [PeerId]; 0 is nobody
};

}  // namespace kvern::sim
