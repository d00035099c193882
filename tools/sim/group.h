// A group of workers: its ranks' joins, and the loop of its leader around the real Scheduler. Like
// the production loop: commands are applied between steps, one report per step, heartbeats when
// idle. A step takes what the roofline says.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/base/rng.h"
#include "tools/sim/fake_model.h"
#include "tools/sim/world.h"
#include "worker/core/scheduler.h"

namespace kvern::sim {

// Sums over a group's lives, for the report.
struct GroupTotals {
  uint64_t steps = 0;
  uint64_t tokens_computed = 0;
  uint64_t preemptions = 0;
  uint64_t recomputed_tokens = 0;
};

class SimGroup {
 public:
  SimGroup(World* world, uint32_t index, uint64_t seed);

  // The launcher starts the ranks (again).
  void Start();
  // All processes die. With `told`, the launcher says so; `restart_after` then starts anew.
  void Kill(bool told, bool lose_tail, Duration restart_after);
  // SIGSTOP for a while: nothing is read, computed or sent; then it goes on as if nothing had been.
  void Pause(Duration length);
  // Steps take `factor` times as long until `until`.
  void SlowDown(uint32_t factor, Time until);
  // The next report breaks the protocol in some way the router must notice.
  void LieOnce();
  // The next report is sent twice.
  void RepeatOnce() { repeat_ = true; }

  void Receive(PeerId peer, const RouterToWorker& message);

  // ---- events; those of another life are void
  void OnStart(uint64_t life);
  void OnStepEnd(uint64_t life);
  void OnHeartbeat(uint64_t life);
  void OnResume(uint64_t life);

  // S4: dies if the scheduler's books are wrong.
  void Audit() const;

  bool up() const { return up_; }
  bool left() const { return left_; }          // drained and gone
  uint64_t faults() const { return faults_; }  // each may cost the router's trust once
  const std::string& name() const { return name_; }
  uint64_t kv_blocks() const { return kv_blocks_; }  // of this incarnation
  Incarnation incarnation() const { return incarnation_; }
  const Scheduler* scheduler() const { return scheduler_.get(); }  // null before GroupStart
  const GroupTotals& totals() const { return totals_; }

 private:
  void Tick();  // the leader's loop, when something may be done
  void StartLeader(const GroupStart& start);
  void Apply(const Commands& commands);
  void BeginStep();
  void EndStep();
  void Report();
  void SpoilReport(StepReport& report);
  void Join(uint32_t rank);

  World* world_;
  uint32_t index_;
  std::string name_;
  Rng rng_;
  bool up_ = false;
  bool left_ = false;
  bool paused_ = false;
  bool lie_ = false;
  bool repeat_ = false;
  uint64_t faults_ = 0;
  uint64_t life_ = 0;  // counts starts and deaths
  Incarnation incarnation_ = 0;
  uint64_t kv_blocks_ = 0;
  uint32_t slowness_ = 1;
  Time slow_until_ = 0;
  std::vector<PeerId> peers_;
  PeerId launcher_;
  GroupTotals totals_;

  std::unique_ptr<Scheduler> scheduler_;
  FakeExecutor executor_;
  std::vector<std::pair<PeerId, RouterToWorker>> inbox_;
  WorkerEffects effects_;
  StepPlan plan_;
  StepResult result_;
  bool stepping_ = false;
  bool step_done_ = false;  // finished while paused
  bool draining_ = false;
  bool report_due_ = false;
  uint64_t acked_ = 0;
  uint64_t step_id_ = 0;
  Time step_began_ = 0;
  uint64_t step_us_ = 0;
  uint64_t prefill_tokens_ = 0;
};

}  // namespace kvern::sim
