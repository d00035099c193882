// The loop of a group's rank 0: commands in, steps, reports out.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "worker/core/scheduler.h"
#include "worker/engine/executor.h"
#include "worker/engine/leader_port.h"
#include "worker/engine/plan_channel.h"

namespace kvern {

struct LeaderConfig {
  Incarnation group_incarnation = 0;
  uint32_t world = 1;
  // An idle leader reports, and proves itself to its ranks, this often: a quarter of its lease.
  Duration heartbeat = 2500 * kMillisecond;
};

// Runs on the thread of rank 0. Each turn takes all commands that are there, plans a step, finishes
// the oldest one that is prepared, if no more may be, and reports. So the plan that is made next
// knows of all commands, and with two plans in flight a step is planned and prepared while the one
// before it runs.
class LeaderLoop {
 public:
  // All pointers outlive the loop.
  LeaderLoop(const LeaderConfig& config, Scheduler* scheduler, Executor* executor,
             PlanChannel* channel, LeaderPort* port);

  // Until the router has told the group to drain and everything is finished: OK, the ranks are told
  // to stop and the router that the group leaves. Any error ends the group: the router's commands
  // have a gap, are repeated or are not for this incarnation (Internal), the port failed, a rank
  // failed.
  absl::Status Run();

 private:
  absl::Status TakeCommands(Duration timeout);
  absl::Status Apply(const Commands& commands);
  // Plans and prepares the next step, if anything can run. Finishes the oldest one, unless there is
  // room for a further plan first.
  absl::Status Step();
  absl::Status FinishStep();
  absl::Status Report();
  absl::Status Finish();

  LeaderConfig config_;
  Scheduler* scheduler_;
  Executor* executor_;
  PlanChannel* channel_;
  LeaderPort* port_;

  std::vector<Commands> commands_;
  WorkerEffects effects_;
  StepPlan plan_;
  bool draining_ = false;
  bool report_due_ = false;  // something happened that the router does not know yet
  uint64_t acked_command_ = 0;
  uint64_t step_id_ = 0;       // of the newest finished step
  uint64_t samples_hash_ = 0;  // of its samples
  Time last_progress_ = 0;     // when all ranks last did something together
  Time last_report_ = 0;
};

}  // namespace kvern
