#include "tests/sim/group.h"

#include <algorithm>
#include <utility>

#include "cluster/base/check.h"

namespace kvern::sim {
namespace {

constexpr Duration kStepBase = 4 * kMillisecond;
constexpr Duration kStepPerToken = 50 * kMicrosecond;

}  // namespace

SimGroup::SimGroup(World* world, std::string name, uint64_t seed)
    : world_(world), name_(std::move(name)), rng_(seed) {}

void SimGroup::Start() {
  KVERN_CHECK(!up_);
  up_ = true;
  ++life_;
  incarnation_ = rng_.Next();
  peers_.clear();
  links_.assign(world_->options().ranks, Link());
  kv_blocks_ = world_->options().kv_blocks;
  for (uint32_t rank = 0; rank < world_->options().ranks; ++rank) {
    peers_.push_back(world_->NewPeer());
    Join join;
    join.group = name_;
    join.group_incarnation = incarnation_;
    join.rank = rank;
    join.world = world_->options().ranks;
    join.build = "sim";
    join.model = "sim";
    bool smallest = rank + 1 == world_->options().ranks;
    join.kv_blocks = kv_blocks_ + (smallest ? 0 : rng_.Below(5));
    join.max_seq_len = kMaxSeqLen;
    join.vocab_size = kVocab;
    Send(rank, join);
  }
}

void SimGroup::Kill(bool told, Duration restart_after) {
  if (!up_) return;
  ++faults_;
  up_ = false;
  paused_ = false;
  lie_ = false;
  ++life_;
  scheduler_.reset();
  executor_.reset();
  inbox_.clear();
  effects_ = WorkerEffects{};
  stepping_ = step_done_ = draining_ = report_due_ = false;
  acked_ = step_id_ = 0;
  if (told) {
    world_->ToRouter(launcher_link_, WorkerSaid{0, GroupDown{name_, incarnation_, "killed"}},
                     [] { return true; });
  }
  world_->After(restart_after, [this, life = life_] {
    if (life == life_) Start();
  });
}

void SimGroup::Pause(Duration length) {
  if (!up_ || paused_) return;
  paused_ = true;
  ++faults_;
  world_->After(length, [this, life = life_] {
    if (life != life_) return;
    paused_ = false;
    if (step_done_) {
      step_done_ = false;
      EndStep(life_);
    } else {
      Tick();
    }
  });
}

bool SimGroup::Owns(PeerId peer) const {
  return std::find(peers_.begin(), peers_.end(), peer) != peers_.end();
}

void SimGroup::Receive(PeerId peer, const RouterToWorker& message) {
  if (!up_ || !Owns(peer)) return;
  inbox_.push_back({peer, message});
  Tick();
}

void SimGroup::Tick() {
  if (!up_ || paused_ || stepping_) return;
  uint64_t life = life_;
  for (auto& [peer, message] : std::exchange(inbox_, {})) {
    if (std::holds_alternative<JoinRefused>(message)) {
      Kill(/*told=*/true, rng_.Between(10, 200) * kMillisecond);
      return;
    }
    if (peer != peers_[0]) continue;  // other ranks only wait for rank 0
    if (const auto* start = std::get_if<GroupStart>(&message)) {
      SchedulerConfig config;
      config.num_blocks = start->kv_blocks;
      config.max_batch_tokens = world_->options().batch_tokens;
      config.max_sequences = static_cast<uint32_t>(start->kv_blocks);
      config.max_seq_len = kMaxSeqLen;
      config.vocab_size = kVocab;
      scheduler_ = std::make_unique<Scheduler>(config);
      executor_.emplace();
      report_due_ = true;
      Heartbeat(life);
    } else {
      Apply(std::get<Commands>(message));
    }
  }
  if (scheduler_ == nullptr) return;
  if (report_due_) Report();
  if (draining_ && scheduler_->idle()) {
    Send(0, Leave{incarnation_});
    up_ = false;
    left_ = true;  // a process that exits in order sends its last words
    return;
  }
  BeginStep();
}

void SimGroup::Apply(const Commands& commands) {
  KVERN_CHECK_EQ(commands.group_incarnation, incarnation_);
  KVERN_CHECK_EQ(commands.sequence, acked_ + 1);
  acked_ = commands.sequence;
  report_due_ = true;
  Time now = world_->now();
  for (const CancelDispatch& cancel : commands.cancels) scheduler_->Cancel(now, cancel, effects_);
  for (const Dispatch& dispatch : commands.dispatches) scheduler_->Accept(now, dispatch, effects_);
  draining_ = draining_ || commands.drain;
  scheduler_->Audit();  // S4
}

void SimGroup::BeginStep() {
  plan_ = StepPlan{};
  if (!scheduler_->Plan(world_->now(), plan_)) return;
  scheduler_->Audit();
  stepping_ = true;
  Duration length = kStepBase + kStepPerToken * plan_.NumTokens();
  world_->After(length, [this, life = life_] { EndStep(life); });
}

void SimGroup::EndStep(uint64_t life) {
  if (life != life_) return;
  if (paused_) {
    step_done_ = true;
    return;
  }
  stepping_ = false;
  StepResult result = executor_->Execute(plan_);
  step_id_ = result.step_id;
  scheduler_->Commit(world_->now(), result, effects_);
  scheduler_->Audit();
  report_due_ = true;
  Tick();
}

void SimGroup::Report() {
  report_due_ = false;
  StepReport report;
  report.group_incarnation = incarnation_;
  report.step_id = step_id_;
  report.acked_command = acked_;
  scheduler_->FillReport(report);
  report.runs = std::exchange(effects_.runs, {});
  report.nacks = std::exchange(effects_.nacks, {});
  // S5 would be broken if the router had sent more than fits.
  for (const Nack& nack : report.nacks) KVERN_CHECK(false) << "nack: " << nack.message;
  if (lie_) SpoilReport(report);
  bool twice = world_->options().replay_reports && rng_.Chance(1, 20);
  Send(0, report);
  if (twice) Send(0, report);
}

void SimGroup::SpoilReport(StepReport& report) {
  lie_ = false;
  switch (report.runs.empty() ? 3 + rng_.Below(2) : rng_.Below(5)) {
    case 0:
      report.runs[0].token_ids[0] = kVocab;
      break;
    case 1:
      report.runs[0].choice = kMaxChoices;
      break;
    case 2:
      report.runs[0].position += 1;
      break;
    case 3:
      report.acked_command += 1000;
      break;
    default:
      report.reserved_blocks = kv_blocks_ + 1;
      break;
  }
}

void SimGroup::Heartbeat(uint64_t life) {
  if (life != life_ || !up_) return;
  if (!paused_ && !stepping_ && scheduler_ != nullptr) Report();
  world_->After(kGroupLease / 3, [this, life] { Heartbeat(life); });
}

void SimGroup::Send(uint32_t rank, WorkerToRouter message) {
  world_->ToRouter(links_[rank], WorkerSaid{peers_[rank], std::move(message)},
                   [this, life = life_] { return life == life_; });
}

}  // namespace kvern::sim
