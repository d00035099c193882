// The loop of the ranks that follow: receive an order, do it.
#pragma once

#include <functional>

#include "cluster/base/status.h"
#include "worker/engine/executor.h"
#include "worker/engine/plan_channel.h"

namespace kvern {

// Runs until the leader says stop (OK) or anything fails: the leader or a peer is gone, a plan is
// not the next one, the leader drew other tokens than this rank. After each order, a keep-alive
// too, it calls `between`, if there is one.
absl::Status RunRankLoop(PlanChannel& channel, Executor& executor,
                         const std::function<void()>& between);

}  // namespace kvern
