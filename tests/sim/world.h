// What clients and groups see of the simulation they live in.
#pragma once

#include <functional>
#include <string>

#include "cluster/base/rng.h"
#include "cluster/base/time.h"
#include "router/core/router.h"
#include "tests/sim/checker.h"
#include "tests/sim/event_queue.h"
#include "tests/sim/options.h"

namespace kvern::sim {

inline constexpr Duration kClientLease = 3 * kSecond;
inline constexpr Duration kGroupLease = 1 * kSecond;

class World {
 public:
  virtual ~World() = default;
  virtual Time now() const = 0;
  virtual void After(Duration delay, std::function<void()> action) = 0;
  // A number in [1, max_delay], of the network's own stream.
  virtual Duration Delay() = 0;
  // Puts an event into the router's inbox after the link's delay, unless `alive` says no by then.
  virtual void ToRouter(Link& link, RouterEvent event, std::function<bool()> alive) = 0;
  virtual PeerId NewPeer() = 0;
  virtual const SimOptions& options() const = 0;
  virtual Checker& checker() = 0;
};

}  // namespace kvern::sim
