// Does what goes wrong (faults.h) to groups, connections, clients and requests, and counts it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/base/rng.h"
#include "tools/sim/client.h"
#include "tools/sim/faults.h"
#include "tools/sim/group.h"
#include "tools/sim/network.h"
#include "tools/sim/workload.h"

namespace kvern::sim {

// What the injector may touch of the simulation.
class FaultTargets {
 public:
  virtual ~FaultTargets() = default;
  virtual std::vector<std::unique_ptr<SimGroup>>& all_groups() = 0;
  virtual size_t client_slots() const = 0;
  virtual SimClient& ClientIn(size_t slot) = 0;
  // Another process takes the slot after `delay`.
  virtual void ReplaceClient(size_t slot, Duration delay) = 0;
  virtual Network& network() = 0;
};

class FaultInjector {
 public:
  FaultInjector(World* world, FaultTargets* targets, Rng rng);

  // Schedules a kFault event for each that happens at a random time.
  void ScheduleAll();
  // A kFault event: `fault` happens now.
  void Happen(Fault fault);
  // Spoils a request that is about to be asked for, perhaps. `index` is of who asks.
  void Spoil(Ask& ask);
  // Whether a fault counted in percent happens now.
  bool Chance(Fault fault);

  const FaultCounts& counts() const { return counts_; }

 private:
  bool HappenToGroup(Fault fault, SimGroup& group);
  bool OneLeaves(SimGroup& first);
  bool HappenToStart(Fault fault, SimGroup& group);
  bool HappenToLink(Fault fault, SimGroup& group);
  bool HappenToClient(Fault fault, size_t slot);
  bool KillAll();
  void SpoilLengths(Ask& ask);
  void SpoilIds(Ask& ask);
  void SpoilReader(Ask& ask);
  void Break(GenerateRequest& request);
  Duration Milliseconds(int64_t low, int64_t high) {
    return rng_->Between(low, high) * kMillisecond;
  }
  // Each kind draws from its own stream, so that the others happen as before without it.
  void DrawFor(Fault fault) { rng_ = &streams_[static_cast<size_t>(fault)]; }

  World* world_;
  FaultTargets* targets_;
  std::vector<Rng> streams_;  // [kNumFaults]
  Rng* rng_;                  // of the kind at work
  FaultCounts counts_;
};

}  // namespace kvern::sim
