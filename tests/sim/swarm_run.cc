#include "tests/sim/swarm_run.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
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

SwarmOptions SmallestFailure(const SwarmRun& failing) {
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
  return smallest;
}

std::string EnvironmentOf(const SwarmOptions& options) {
  std::string text = absl::StrCat("KVERN_SIM_SEED=", options.sim.seed,
                                  " KVERN_SIM_FAULTS=", NamesOf(options.sim.faults));
  if (options.sim.max_requests < UINT64_MAX) {
    absl::StrAppend(&text, " KVERN_SIM_REQUESTS=", options.sim.max_requests);
  }
  return text;
}

absl::StatusOr<std::optional<SwarmOptions>> OptionsFrom(
    const std::function<const char*(const char*)>& lookup) {
  const char* seed = lookup("KVERN_SIM_SEED");
  if (seed == nullptr) return std::nullopt;
  uint64_t number = 0;
  if (!absl::SimpleAtoi(seed, &number)) return InvalidArgument("KVERN_SIM_SEED: '", seed, "'");
  SwarmOptions options = DrawOptions(number);
  if (const char* names = lookup("KVERN_SIM_FAULTS")) {
    KVERN_ASSIGN_OR_RETURN(FaultLevels named, ParseFaults(names, 1));
    for (size_t i = 0; i < kNumFaults; ++i) {
      if (named[Fault(i)] == 0) options.sim.faults[Fault(i)] = 0;
    }
  }
  const char* requests = lookup("KVERN_SIM_REQUESTS");
  if (requests != nullptr && !absl::SimpleAtoi(requests, &options.sim.max_requests)) {
    return InvalidArgument("KVERN_SIM_REQUESTS: '", requests, "'");
  }
  return options;
}

}  // namespace kvern::sim
