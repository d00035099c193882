// One rank's execution of plans: mirrors the sequences, runs the decoder, samples.
#pragma once

#include <cstdint>
#include <memory>

#include "cluster/base/status.h"
#include "schemas/plan_messages.h"

namespace kvern {

// The seam between the loops and the model; tests put a fake behind it. Called by one thread.
class Executor {
 public:
  virtual ~Executor() = default;

  // Executes `plan` on this rank; all ranks execute the same plans in the same order and return the
  // same samples. Errors are final for the group: a peer is gone, the plan's step id is not the
  // next one, or its previous_samples_hash differs from this rank's.
  virtual absl::StatusOr<StepResult> Execute(const StepPlan& plan) = 0;
};

}  // namespace kvern
