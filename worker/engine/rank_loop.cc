#include "worker/engine/rank_loop.h"

#include <optional>

namespace kvern {

absl::Status RunRankLoop(PlanChannel& channel, Executor& executor) {
  while (true) {
    KVERN_ASSIGN_OR_RETURN(std::optional<StepPlan> plan, channel.Receive());
    if (!plan) continue;  // The leader lives and has nothing to do.
    if (plan->stop) return absl::OkStatus();
    KVERN_RETURN_IF_ERROR(executor.Execute(*plan).status());
  }
}

}  // namespace kvern
