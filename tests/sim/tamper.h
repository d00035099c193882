// Puts a mistake (Bug) into what the router says, again and again, so that a run cannot miss it.
#pragma once

#include <map>
#include <vector>

#include "cluster/base/rng.h"
#include "router/core/router.h"
#include "tests/sim/swarm_options.h"

namespace kvern::sim {

class Tamper {
 public:
  explicit Tamper(const SwarmOptions& options)
      : bug_(options.bug), vocab_(options.sim.model.vocab), rng_(options.sim.seed) {}
  // Changes the effects of one turn.
  void Apply(Time now, RouterEffects& effects);

 private:
  void SpoilDeltas(PeerId client, Deltas& deltas);
  void SpoilErrors(RouterEffects& effects);
  void HoldCommands(Time now, RouterEffects& effects);

  Bug bug_;
  uint32_t vocab_;
  Rng rng_;
  std::map<PeerId, Delta> swapped_;  // held back, to follow its successor
  std::map<RequestId, Delta> last_;  // of each request, for kDeltaAfterEnd
  std::vector<ToWorker> held_;       // commands, for kLateDispatch
  Time hold_until_ = -1;
};

}  // namespace kvern::sim
