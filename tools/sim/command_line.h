// The options of kvern-sim.
#pragma once

#include "cluster/base/options.h"
#include "tools/sim/run_config.h"

namespace kvern::sim {

// Registers all of them; the targets outlive `options`.
void AddOptions(Options& options, RunConfig& config);

}  // namespace kvern::sim
