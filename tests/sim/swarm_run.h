// One run of the swarm, and all that it needs.
#pragma once

#include <string>

#include "tests/router/core/letter_filter.h"
#include "tests/sim/swarm_options.h"
#include "tests/sim/swarm_workload.h"
#include "tests/sim/tamper.h"
#include "tools/sim/simulation.h"

namespace kvern::sim {

class SwarmRun {
 public:
  // Runs it to its end, or to where something is broken.
  explicit SwarmRun(const SwarmOptions& options);

  const SwarmOptions& options() const { return options_; }
  const Simulation& simulation() const { return simulation_; }

 private:
  const SwarmOptions options_;
  SwarmWorkload workload_;
  LetterFilterFactory filters_;
  Tamper tamper_;
  Simulation simulation_;
};

// The smallest run that fails in the same way, as text. REQUIRES: it has a violation.
std::string SmallestFailure(const SwarmRun& failing);

}  // namespace kvern::sim
