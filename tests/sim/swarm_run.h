// One run of the swarm, and all that it needs.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "cluster/base/status.h"
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

// The smallest run that fails in the same way. REQUIRES: it has a violation.
SwarmOptions SmallestFailure(const SwarmRun& failing);

// What to set in the environment so that sim_test makes this run, which DrawOptions gave or
// SmallestFailure: "KVERN_SIM_SEED=7 KVERN_SIM_FAULTS=cancel KVERN_SIM_REQUESTS=12".
std::string EnvironmentOf(const SwarmOptions& options);
// The run that it says, `lookup` being getenv: without a seed none, without the others all that the
// seed stands for. InvalidArgument: a value is not one of these.
absl::StatusOr<std::optional<SwarmOptions>> OptionsFrom(
    const std::function<const char*(const char*)>& lookup);

}  // namespace kvern::sim
