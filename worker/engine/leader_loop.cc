#include "worker/engine/leader_loop.h"

#include <algorithm>
#include <utility>

#include "cluster/base/clock.h"

namespace kvern {

LeaderLoop::LeaderLoop(const LeaderConfig& config, Scheduler* scheduler, Executor* executor,
                       PlanChannel* channel, LeaderPort* port)
    : config_(config), scheduler_(scheduler), executor_(executor), channel_(channel), port_(port) {}

absl::Status LeaderLoop::Run() {
  last_progress_ = MonotonicNow();
  KVERN_RETURN_IF_ERROR(Report());  // The first one says that the group is live.
  while (true) {
    Duration since_report = MonotonicNow() - last_report_;
    Duration idle_wait = std::max<Duration>(0, config_.heartbeat - since_report);
    KVERN_RETURN_IF_ERROR(TakeCommands(scheduler_->idle() ? idle_wait : 0));
    KVERN_RETURN_IF_ERROR(Step());
    if (draining_ && scheduler_->idle()) return Finish();
    if (!report_due_ && MonotonicNow() - last_report_ >= config_.heartbeat) {
      KVERN_RETURN_IF_ERROR(channel_->KeepAlive());
      last_progress_ = MonotonicNow();
      report_due_ = true;
    }
    if (report_due_) KVERN_RETURN_IF_ERROR(Report());
  }
}

absl::Status LeaderLoop::TakeCommands(Duration timeout) {
  commands_.clear();
  KVERN_RETURN_IF_ERROR(port_->Receive(timeout, commands_));
  for (const Commands& commands : commands_) KVERN_RETURN_IF_ERROR(Apply(commands));
  return absl::OkStatus();
}

absl::Status LeaderLoop::Apply(const Commands& commands) {
  if (commands.group_incarnation != config_.group_incarnation) {
    return Internal("command ", commands.sequence, " is for incarnation ",
                    commands.group_incarnation, ", this group is ", config_.group_incarnation);
  }
  if (commands.sequence != acked_command_ + 1) {
    return Internal("command ", commands.sequence, " came after command ", acked_command_);
  }
  acked_command_ = commands.sequence;
  report_due_ = true;
  Time now = MonotonicNow();
  auto cancel_all = [&] {
    for (const CancelDispatch& cancel : commands.cancels) scheduler_->Cancel(now, cancel, effects_);
  };
  cancel_all();  // first, so that dispatches may use what it frees
  for (const Dispatch& dispatch : commands.dispatches) {
    if (draining_) {
      effects_.nacks.push_back(
          {dispatch.request_id, dispatch.epoch, ErrorCode::kUnavailable, "the group is draining"});
    } else {
      scheduler_->Accept(now, dispatch, effects_);
    }
  }
  cancel_all();  // what was dispatched and cancelled within one turn of the router
  draining_ = draining_ || commands.drain;
  return absl::OkStatus();
}

absl::Status LeaderLoop::Step() {
  if (scheduler_->Plan(MonotonicNow(), plan_)) {
    const bool finish = scheduler_->full();
    KVERN_RETURN_IF_ERROR(channel_->Send(plan_, finish));
    KVERN_RETURN_IF_ERROR(executor_->Prepare(plan_));
    return finish ? FinishStep() : absl::OkStatus();
  }
  if (scheduler_->plans_in_flight() == 0) return absl::OkStatus();
  KVERN_RETURN_IF_ERROR(channel_->SendFinish());
  return FinishStep();
}

absl::Status LeaderLoop::FinishStep() {
  KVERN_ASSIGN_OR_RETURN(StepResult result, executor_->Finish());
  last_progress_ = MonotonicNow();
  scheduler_->Commit(last_progress_, result, effects_);
  scheduler_->AuditSums();  // Books that do not add up end the group: better than wrong answers.
  step_id_ = result.step_id;
  samples_hash_ = SamplesHash(result);
  report_due_ = true;
  return absl::OkStatus();
}

absl::Status LeaderLoop::Report() {
  StepReport report;
  report.group_incarnation = config_.group_incarnation;
  report.step_id = step_id_;
  report.acked_command = acked_command_;
  scheduler_->FillReport(report);
  report.runs = std::exchange(effects_.runs, {});
  report.nacks = std::exchange(effects_.nacks, {});
  last_report_ = MonotonicNow();
  // A step or a keep-alive is complete on rank 0 only when every rank has taken part.
  uint64_t age_ms = static_cast<uint64_t>((last_report_ - last_progress_) / kMillisecond);
  for (uint32_t rank = 0; rank < config_.world; ++rank) report.ages.push_back({rank, age_ms});
  report_due_ = false;
  return port_->Send(report);
}

absl::Status LeaderLoop::Finish() {
  KVERN_RETURN_IF_ERROR(Report());
  StepPlan stop;
  stop.step_id = step_id_ + 1;
  stop.previous_samples_hash = samples_hash_;
  stop.stop = true;
  KVERN_RETURN_IF_ERROR(channel_->Send(stop, /*finish=*/false));
  return port_->Send(Leave{config_.group_incarnation});
}

}  // namespace kvern
