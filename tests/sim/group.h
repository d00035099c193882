// A group of workers: its ranks' joins, and the loop of its leader around the real Scheduler. Like
// the production loop: commands are applied between steps, one report per step, heartbeats when
// idle.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/fake_executor.h"
#include "tests/sim/world.h"
#include "worker/core/scheduler.h"

namespace kvern::sim {

class SimGroup {
 public:
  SimGroup(World* world, std::string name, uint64_t seed);

  // The launcher starts the ranks (again).
  void Start();
  // All processes die. With `told`, the launcher says so; `restart_after` then starts anew.
  void Kill(bool told, Duration restart_after);
  // SIGSTOP for a while: nothing is read, computed or sent; then it goes on as if nothing had been.
  void Pause(Duration length);
  // The next report breaks the protocol in some way the router must notice.
  void LieOnce() {
    lie_ = true;
    ++faults_;
  }

  void Receive(PeerId peer, const RouterToWorker& message);
  // Messages to these come here.
  bool Owns(PeerId peer) const;
  bool up() const { return up_; }
  bool left() const { return left_; }          // drained and gone
  uint64_t faults() const { return faults_; }  // each may cost the router's trust once
  const std::string& name() const { return name_; }
  uint64_t kv_blocks() const { return kv_blocks_; }  // of this incarnation
  Incarnation incarnation() const { return incarnation_; }
  const Scheduler* scheduler() const { return scheduler_.get(); }  // null before GroupStart

 private:
  void Tick();  // the leader's loop, when something may be done
  void WakeUp(Duration delay);
  void Apply(const Commands& commands);
  void BeginStep();
  void EndStep(uint64_t life);
  void Report();
  void SpoilReport(StepReport& report);
  void Heartbeat(uint64_t life);
  void Send(uint32_t rank, WorkerToRouter message);

  World* world_;
  std::string name_;
  Rng rng_;
  bool up_ = false;
  bool left_ = false;
  bool paused_ = false;
  bool lie_ = false;
  uint64_t faults_ = 0;
  uint64_t life_ = 0;  // counts starts and deaths: what was scheduled in another life is void
  Incarnation incarnation_ = 0;
  uint64_t kv_blocks_ = 0;
  std::vector<PeerId> peers_;
  std::vector<Link> links_;
  Link launcher_link_;

  std::unique_ptr<Scheduler> scheduler_;
  std::optional<FakeExecutor> executor_;
  std::vector<std::pair<PeerId, RouterToWorker>> inbox_;
  WorkerEffects effects_;
  StepPlan plan_;
  bool stepping_ = false;
  bool step_done_ = false;  // finished while paused
  bool draining_ = false;
  bool report_due_ = false;
  uint64_t acked_ = 0;
  uint64_t step_id_ = 0;
};

}  // namespace kvern::sim
