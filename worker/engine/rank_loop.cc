#include "worker/engine/rank_loop.h"

namespace kvern {

absl::Status RunRankLoop(PlanChannel& channel, Executor& executor,
                         const std::function<void()>& between) {
  while (true) {
    KVERN_ASSIGN_OR_RETURN(const PlanChannel::Order order, channel.Receive());
    if (order.plan && order.plan->stop) return absl::OkStatus();
    if (order.plan) KVERN_RETURN_IF_ERROR(executor.Prepare(*order.plan));
    if (order.finish) KVERN_RETURN_IF_ERROR(executor.Finish().status());
    if (between) between();
  }
}

}  // namespace kvern
