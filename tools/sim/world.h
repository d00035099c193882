// What clients and groups see of the simulation they live in.
#pragma once

#include <cstdint>

#include "cluster/base/time.h"
#include "router/core/router.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/options.h"

namespace kvern::sim {

class Checker;

class World {
 public:
  virtual ~World() = default;
  virtual Time now() const = 0;
  virtual const SimOptions& options() const = 0;
  virtual Checker& checker() = 0;

  // An event for the caller: `index` and `value` come back to it.
  virtual void Schedule(Time at, EventKind kind, uint32_t index, uint64_t value) = 0;

  // A new connection to the router; messages to it go to the group or client `owner`.
  virtual PeerId ConnectGroup(uint32_t owner) = 0;
  virtual PeerId ConnectClient(uint32_t owner) = 0;
  // The connection is gone: what is under way from it may still arrive, unless `lose_tail`.
  virtual void Disconnect(PeerId peer, bool lose_tail) = 0;
  // Puts an event into the router's inbox after the link's delay.
  virtual void ToRouter(PeerId peer, RouterEvent&& event) = 0;
};

}  // namespace kvern::sim
