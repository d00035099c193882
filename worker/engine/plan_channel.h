// How plans travel from a group's leader to its ranks: as bytes, by the group's communicator, in
// front of the collectives of the step they describe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "cluster/base/status.h"
#include "schemas/plan_messages.h"
#include "worker/comm/communicator.h"

namespace kvern {

// One per rank, used by the rank's thread. Every call is a collective: the ranks call Receive once
// for each call of the leader. The leader says when a step is to be finished, since that takes
// collectives too: all ranks must agree on their order. Errors are final for the group.
class PlanChannel {
 public:
  struct Order {
    std::optional<StepPlan> plan;  // prepare it
    bool finish = false;           // then finish the oldest step that is prepared
  };

  // `comm` outlives the channel.
  explicit PlanChannel(Communicator* comm) : comm_(comm) {}

  // Leader (rank 0). Internal if the plan is larger than kMaxPlanBytes.
  absl::Status Send(const StepPlan& plan, bool finish);

  // Leader: an order without a plan.
  absl::Status SendFinish();

  // Leader: proves to the ranks that it lives, and to itself that all ranks do.
  absl::Status KeepAlive();

  // The other ranks: the next order; a keep-alive is one with nothing to do. Internal if the bytes
  // are not those of a plan or its step is not the one after the last.
  absl::StatusOr<Order> Receive();

 private:
  Communicator* comm_;
  std::vector<std::byte> bytes_;
  uint64_t last_step_ = 0;
};

}  // namespace kvern
