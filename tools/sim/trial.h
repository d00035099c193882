// Runs of a plan: here, or in a child process that may die of a failed check.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/status.h"
#include "tools/sim/results.h"
#include "tools/sim/run_config.h"

namespace kvern::sim {

// The whole run, and what it came to (without wall_s).
Results RunHere(const RunPlan& plan);

// Capacity of the workload over all groups, in requests per second: one group is measured, and
// groups share nothing. Internal: an invariant broke meanwhile.
absl::StatusOr<double> FindCapacity(const RunConfig& config,
                                    std::shared_ptr<const std::vector<TraceRow>> trace);

struct ChildOutcome {
  int code = 0;  // 1 when a signal ended it
  std::string output;
  std::string errors;
};
// `body` in a forked child. REQUIRES: this process has one thread.
ChildOutcome RunInChild(const std::function<int()>& body);

// The name of the check that fails first in a run of `plan` in a child: "S1" and the like, or
// "file:line" of the failed KVERN_CHECK that killed it; "" when all is well.
std::string FailingCheckInChild(const RunPlan& plan);

// The smallest run that fails as `failing` does, made of other faults and fewer requests alone.
struct SmallestRun {
  std::string check;
  RunConfig config;
  RunPlan plan;
};
// `config`: what `failing` was made of. Absent: it does not fail when it is run again.
std::optional<SmallestRun> FindSmallest(const RunConfig& config, const RunPlan& failing);

// The arguments of a command line, with the faults and the number of requests of `config`. With
// --load it means the same run still: the capacity is measured without them.
std::string LineWith(const std::vector<std::string>& arguments, const RunConfig& config);

}  // namespace kvern::sim
