// A group of workers: its ranks' joins, and the loop of its leader around the real Scheduler. Like
// the production loop: commands are applied between steps, one report per step, heartbeats when
// idle; with two plans in flight the second is made when the first begins to run. A step takes what
// the roofline says.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/base/id_map.h"
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

// What a group was sent to run, for telling a preempted request by its coming back.
struct Running {
  RequestId id;
  std::array<uint8_t, kMaxChoices> starts = {};
};

// By which the ranks of one start of a group find each other.
std::vector<uint8_t> CommIdOf(Incarnation start);

class SimGroup {
 public:
  SimGroup(World* world, uint32_t index, uint64_t seed);

  // How the next start goes.
  enum class NextStart : uint8_t {
    kWell,
    kSmaller,
    kRankLate,
    kRankMissing,
    kRankDiffers,
    kRankOutlives
  };
  struct Death {
    bool told = true;  // the launcher says so
    bool lose_tail = false;
    Duration restart_after = 0;
    uint32_t deaths_to_come = 0;  // it dies that often again
    NextStart next_start = NextStart::kWell;
  };

  // The launcher starts the ranks (again).
  void Start();

  // ---- faults; false: it is not up, or cannot be hit
  // All processes die, and are started again.
  bool Kill(const Death& death);
  // SIGSTOP for a while: nothing is read, computed or sent; then it goes on as if nothing had been.
  bool Pause(Duration length);
  // Steps take `factor` times as long until `until`.
  bool SlowDown(uint32_t factor, Time until);
  // The next report breaks the protocol in some way the router must notice.
  bool LieOnce();
  // The next dispatches are refused.
  bool RefuseNext(uint32_t count);
  // The next report is sent twice.
  bool RepeatOnce();
  // None of these three happens any more.
  void BehaveAgain() { lie_ = repeat_ = false, refuse_ = 0; }
  // The connections break and are made anew; the ranks notice after a moment, and end.
  bool Reset();
  // A rank, drawn by `draw`, or all are told to end; it leaves when it is drained. It is started
  // again that long after its last words can have arrived.
  bool LeaveSoon(uint64_t draw, Duration restart_after);
  // Something outside happened to it that may cost the router's trust.
  void CountFault() { ++faults_; }

  void Receive(PeerId peer, RouterToWorker message);

  // ---- events; those of another life are void
  void OnStart(uint64_t life);
  void OnStepEnd(uint64_t life);
  void OnHeartbeat(uint64_t life);
  void OnResume(uint64_t life);
  void OnDeath(uint64_t life);
  void OnRankJoins(uint64_t life);

  // Asks for the memory that the end of a step needs beside the group itself. In two stages, the
  // second looking where the first has led.
  void PrefetchStep(size_t stage) const;

  // S4: dies if the scheduler's books are wrong.
  void Audit() const;

  bool up() const { return up_; }
  bool paused() const { return paused_; }
  bool doomed() const { return doomed_; }      // a fault that came before will end this life
  bool left() const { return left_; }          // drained and gone
  uint64_t faults() const { return faults_; }  // each may cost the router's trust once
  const std::string& name() const { return name_; }
  const std::vector<PeerId>& peers() const { return peers_; }
  uint64_t steps_of_life() const { return step_id_; }
  // Since when it has, every hundred steps at least, computed enough of prompts in one step to show
  // what they cost; kTimeMax: it does not.
  Time prefills_since() const {
    return step_id_ - last_prefill_ > kPrefillEvery ? kTimeMax : prefills_since_;
  }
  static uint32_t TellingPrefill(uint32_t batch_tokens) { return std::min(256u, batch_tokens / 2); }
  // Whether the router must refuse the report.
  bool IsLie(const StepReport& report) const { return lie_told_ && report == *lie_told_; }
  uint64_t kv_blocks() const { return kv_blocks_; }  // of this incarnation
  Incarnation incarnation() const { return incarnation_; }
  // Null before GroupStart.
  const Scheduler* scheduler() const { return scheduler_ ? &*scheduler_ : nullptr; }
  const GroupTotals& totals() const { return totals_; }
  Duration longest_step() const { return longest_step_; }

 private:
  // The leader's loop: does a turn if no step runs that it waits for.
  void Tick();
  void DoTurn();
  void StartLeader(const GroupStart& start);
  void Apply(const Commands& commands);
  void NoteSent(const RequestId& id);
  // Plans as far ahead as may be.
  void PlanAhead();
  // The `i`-th in flight, or the place of the next.
  StepPlan& PlanAt(size_t i) { return plans_[(first_plan_ + i) % plans_.size()]; }
  const StepPlan& RunningPlan() const { return plans_[first_plan_]; }
  void NotePrefill(const StepPlan& plan);
  // Runs the oldest plan in flight.
  void BeginStep();
  void CountPreemptions(const StepPlan& plan);
  // Forgets requests that are over, as far as that is easily seen: there may be very many.
  void ForgetEnded();
  void EndStep();
  void Report();
  void DieAfter(Duration delay);
  // Every process is gone.
  void End();
  void Leave();
  void SpoilReport(StepReport& report);
  void SpeakForOthers(StepReport& report);
  void Join(uint32_t rank);
  // The last rank of the life before, over a connection of its own.
  void JoinLate();
  // Until when a join that is sent now has come.
  Time WhenJoined() const;
  kvern::Join MakeJoin(uint32_t rank, Incarnation incarnation);
  void JoinAll();

  World* world_;
  uint32_t index_;
  std::string name_;
  Rng rng_;
  bool up_ = false;
  bool left_ = false;
  bool paused_ = false;
  bool doomed_ = false;
  bool lie_ = false;
  bool repeat_ = false;
  uint32_t refuse_ = 0;  // dispatches
  std::optional<StepReport> lie_told_;
  uint64_t faults_ = 0;
  std::optional<Duration> returns_after_;  // it was told to leave
  uint64_t life_ = 0;                      // counts starts and deaths
  Incarnation incarnation_ = 0;
  Incarnation former_ = 0;  // of the life before
  Time late_until_ = 0;     // a join of that life, or of the one before, may be under way
  uint64_t kv_blocks_ = 0;
  NextStart next_start_ = NextStart::kWell;
  uint32_t deaths_to_come_ = 0;
  uint32_t slowness_ = 1;
  Time slow_until_ = 0;
  std::vector<PeerId> peers_;
  PeerId launcher_;
  GroupTotals totals_;

  std::optional<Scheduler> scheduler_;
  FakeExecutor executor_;
  std::vector<std::pair<PeerId, RouterToWorker>> inbox_;
  WorkerEffects effects_;
  // In flight, and a place for the next; the first of those in flight runs. Places are used again,
  // with their memory.
  std::array<StepPlan, kMaxPlansInFlight + 1> plans_;
  size_t first_plan_ = 0;
  size_t plans_in_flight_ = 0;
  StepResult result_;
  bool step_done_ = false;  // finished while paused
  bool draining_ = false;
  bool report_due_ = false;
  uint64_t acked_ = 0;
  uint64_t step_id_ = 0;
  static constexpr uint64_t kPrefillEvery = 100;  // steps; the router remembers some more
  Time prefills_since_ = kTimeMax;
  uint64_t last_prefill_ = 0;  // the last step of that kind
  Duration longest_step_ = 0;
  uint64_t preemptions_ = 0;  // of this life, as last reported
  uint64_t recomputed_tokens_ = 0;
  IdMap<uint64_t, Running> by_seed_;
  IdMap<RequestId, bool> sent_;  // all that this life was sent, when it may lie about others
};

}  // namespace kvern::sim
