// One rank's execution of plans: mirrors the sequences, runs the decoder, samples.
#pragma once

#include <cstdint>
#include <memory>

#include "cluster/base/status.h"
#include "schemas/plan_messages.h"

namespace kvern {

// The seam between the loops and the model; tests put a fake behind it. Called by one thread. All
// ranks prepare and finish the same steps in the same order and draw the same samples. Errors are
// final for the group.
class Executor {
 public:
  virtual ~Executor() = default;

  // Takes the plan of the next step. It begins to run at once, or, when the step before is not
  // finished, as soon as that is: until then everything is made ready that does not depend on what
  // that step draws. REQUIRES: fewer than kMaxPlansInFlight steps are prepared and not finished.
  // Errors: the step id is not the next one, or previous_samples_hash is not that of the step that
  // this rank has finished last; those of running the step.
  virtual absl::Status Prepare(const StepPlan& plan) = 0;

  // Waits for the oldest step that is not finished, draws its tokens, and lets the next one begin.
  // REQUIRES: there is one. Errors: a peer is gone, the device fails.
  virtual absl::StatusOr<StepResult> Finish() = 0;
};

}  // namespace kvern
