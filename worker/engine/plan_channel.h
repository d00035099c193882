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

// One per rank, used by the rank's thread between steps. Every call is a collective: the ranks call
// Receive once for each Send and each KeepAlive of the leader. Errors are final for the group.
class PlanChannel {
 public:
  // `comm` outlives the channel.
  explicit PlanChannel(Communicator* comm) : comm_(comm) {}

  // Leader (rank 0). Internal if the plan is larger than kMaxPlanBytes.
  absl::Status Send(const StepPlan& plan);

  // Leader: proves to the ranks that it lives, and to itself that all ranks do.
  absl::Status KeepAlive();

  // The other ranks: the next plan, or nothing for a keep-alive. Internal if the bytes are not
  // those of a plan or its step is not the one after the last.
  absl::StatusOr<std::optional<StepPlan>> Receive();

 private:
  Communicator* comm_;
  std::vector<std::byte> bytes_;
  uint64_t last_step_ = 0;
};

}  // namespace kvern
