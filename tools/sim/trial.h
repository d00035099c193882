// Runs of a plan: here, or in a child process that may die of a failed check.
#pragma once

#include <functional>
#include <memory>
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

// `body` in a forked child with its output; its exit code, or 1 when a signal ended it.
// REQUIRES: this process has one thread.
int RunInChild(const std::function<int()>& body);

// The name of the check that fails first in a run of `plan` in a child: "S1" and the like, or
// "file:line" of the failed KVERN_CHECK that killed it; "" when all is well.
std::string FailingCheckInChild(const RunPlan& plan);

}  // namespace kvern::sim
