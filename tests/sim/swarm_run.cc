#include "tests/sim/swarm_run.h"

#include "tools/sim/shrink.h"

namespace kvern::sim {

SwarmRun::SwarmRun(const SwarmOptions& options)
    : options_(options),
      workload_(options_),
      tamper_(options_),
      simulation_(options_.sim, workload_, &filters_) {
  simulation_.set_tamper([this](Time now, RouterEffects& effects) { tamper_.Apply(now, effects); });
  simulation_.Run();
}

std::string SmallestFailure(const SwarmRun& failing) {
  std::string check = CheckName(failing.simulation().violations()[0]);
  auto run = [&](const SimOptions& sim) -> std::string {
    SwarmOptions options = failing.options();
    options.sim = sim;
    SwarmRun smaller(options);
    const auto& violations = smaller.simulation().violations();
    return violations.empty() ? "" : CheckName(violations[0]);
  };
  SwarmOptions smallest = failing.options();
  uint64_t requests = failing.simulation().records().size();
  smallest.sim = Shrink(failing.options().sim, check, requests, run).options;
  return ToString(smallest);
}

}  // namespace kvern::sim
