#include "tools/sim/group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "cluster/base/prefetch.h"
#include "tools/sim/checker.h"

namespace kvern::sim {
namespace {

constexpr char kMadeUp[] = "refused by the fault injector";
// A lie about another group's request looks at so many of the latest.
constexpr size_t kFewRecords = 50;

}  // namespace

std::vector<uint8_t> CommIdOf(Incarnation start) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(&start);
  return std::vector<uint8_t>(bytes, bytes + sizeof(start));
}

SimGroup::SimGroup(World* world, uint32_t index, uint64_t seed)
    : world_(world),
      index_(index),
      name_(absl::StrCat("g", index)),
      rng_(seed),
      launcher_(world->ConnectGroup(index)),
      executor_(world->options().model) {}

void SimGroup::Start() {
  KVERN_CHECK(!up_);
  up_ = true;
  ++life_;
  former_ = std::exchange(incarnation_, rng_.Next());
  peers_.clear();
  for (uint32_t rank = 0; rank < world_->options().ranks; ++rank) {
    peers_.push_back(world_->ConnectGroup(index_));
  }
  kv_blocks_ = world_->options().kv_blocks;
  for (uint32_t i = 0; i < index_; ++i) {
    kv_blocks_ = std::max<uint64_t>(1, kv_blocks_ * world_->options().next_group_percent / 100);
  }
  if (next_start_ == NextStart::kSmaller) kv_blocks_ -= kv_blocks_ / 4;
  JoinAll();
  if (deaths_to_come_ == 0) return;
  DieAfter(rng_.Between(1, 500) * kMillisecond);
}

void SimGroup::DieAfter(Duration delay) {
  doomed_ = true;
  world_->Schedule(world_->now() + delay, EventKind::kGroupDies, index_, life_);
}

void SimGroup::JoinAll() {
  uint32_t ranks = world_->options().ranks;
  bool last_waits = next_start_ == NextStart::kRankLate || next_start_ == NextStart::kRankMissing;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    if (!last_waits || rank + 1 < ranks) Join(rank);
  }
  Duration later = rng_.Between(100, 5000) * kMillisecond;
  bool fails = next_start_ == NextStart::kRankMissing || next_start_ == NextStart::kRankDiffers;
  if (next_start_ == NextStart::kRankLate || next_start_ == NextStart::kRankOutlives) {
    world_->Schedule(world_->now() + later, EventKind::kRankJoins, index_, life_);
  } else if (fails) {
    DieAfter(later);
  }
}

void SimGroup::OnRankJoins(uint64_t life) {
  if (life != life_) return;
  if (next_start_ == NextStart::kRankOutlives) return JoinLate();
  Join(world_->options().ranks - 1);
}

Time SimGroup::WhenJoined() const {
  return world_->now() + world_->options().max_delay + world_->options().router_turn;
}

void SimGroup::JoinLate() {
  const SimOptions& options = world_->options();
  kvern::Join join = MakeJoin(options.ranks - 1, former_);
  late_until_ = WhenJoined();
  PeerId peer = world_->ConnectGroup(index_);
  world_->ToRouter(peer, WorkerSaid{peer, std::move(join)});
}

void SimGroup::OnDeath(uint64_t life) {
  if (life != life_) return;
  Kill({.told = true,
        .lose_tail = rng_.Chance(1, 2),
        .restart_after = rng_.Between(1, 100) * kMillisecond,
        .deaths_to_come = deaths_to_come_ > 0 ? deaths_to_come_ - 1 : 0});
}

void SimGroup::Join(uint32_t rank) {
  late_until_ = std::max(late_until_, WhenJoined());
  world_->ToRouter(peers_[rank], WorkerSaid{peers_[rank], MakeJoin(rank, incarnation_)});
}

kvern::Join SimGroup::MakeJoin(uint32_t rank, Incarnation incarnation) {
  const SimOptions& options = world_->options();
  kvern::Join join;
  join.group = name_;
  join.group_incarnation = incarnation;
  join.rank = rank;
  join.world = options.ranks;
  join.model = options.router.model;
  bool smallest = rank + 1 == options.ranks;
  join.build = smallest && next_start_ == NextStart::kRankDiffers ? "other" : "sim";
  join.kv_blocks = kv_blocks_ + (smallest ? 0 : rng_.Below(options.extra_blocks + 1));
  join.max_seq_len = options.router.max_seq_len;
  join.vocab_size = options.router.vocab_size;
  join.max_batch_tokens = options.batch_tokens;
  if (rank == 0) join.comm_id = CommIdOf(incarnation);
  return join;
}

bool SimGroup::Kill(const Death& death) {
  if (!up_) return false;
  ++faults_;
  End();
  for (PeerId peer : peers_) world_->Disconnect(peer, death.lose_tail);
  next_start_ = death.next_start;
  deaths_to_come_ = death.deaths_to_come;
  if (death.told) {
    world_->ToRouter(launcher_, WorkerSaid{0, GroupDown{name_, incarnation_, "killed"}});
  }
  world_->Schedule(world_->now() + death.restart_after, EventKind::kGroupStarts, index_, life_);
  return true;
}

void SimGroup::End() {
  // Of two lives ago, or one that comes after the next life's, a join is nothing that the router
  // could tell from a newer one.
  if (world_->now() <= late_until_) ++faults_;
  up_ = false;
  paused_ = doomed_ = lie_ = repeat_ = false;
  refuse_ = 0;
  returns_after_.reset();
  slowness_ = 1;
  next_start_ = NextStart::kWell;
  deaths_to_come_ = 0;
  ++life_;
  scheduler_.reset();
  executor_ = FakeExecutor(world_->options().model);
  inbox_.clear();
  effects_ = WorkerEffects{};
  plans_ = {};
  first_plan_ = plans_in_flight_ = 0;
  step_done_ = draining_ = report_due_ = false;
  acked_ = step_id_ = preemptions_ = recomputed_tokens_ = last_prefill_ = 0;
  prefills_since_ = kTimeMax;
  by_seed_ = {};
  sent_ = {};
}

bool SimGroup::LeaveSoon(uint64_t draw, Duration restart_after) {
  if (!up_ || paused_ || doomed_ || !scheduler_) return false;
  doomed_ = true;
  returns_after_ = restart_after;
  size_t told = draw / 2 % peers_.size();
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (draw % 2 == 0 && rank != told) continue;
    world_->ToRouter(peers_[rank], WorkerSaid{peers_[rank], kvern::LeaveSoon{incarnation_}});
  }
  return true;
}

void SimGroup::Leave() {
  world_->ToRouter(peers_[0], WorkerSaid{peers_[0], kvern::Leave{incarnation_}});
  if (!returns_after_) {
    up_ = false;
    left_ = true;
    ++faults_;  // what is under way to its other ranks finds nobody
    // A process that exits in order sends its last words.
    for (PeerId gone : peers_) world_->Disconnect(gone, /*lose_tail=*/false);
    return;
  }
  const SimOptions& options = world_->options();
  Time start = world_->now() + options.max_delay + options.router_turn + *returns_after_;
  // Its connections stand until its last words have arrived; then nobody speaks to it any more.
  End();
  world_->Schedule(start, EventKind::kGroupStarts, index_, life_);
}

bool SimGroup::Reset() {
  if (!up_) return false;
  ++faults_;
  for (PeerId& peer : peers_) {
    world_->Disconnect(peer, /*lose_tail=*/true);
    peer = world_->ConnectGroup(index_);
  }
  DieAfter(rng_.Between(1, 50) * kMillisecond);
  return true;
}

void SimGroup::OnStart(uint64_t life) {
  if (life == life_) Start();
}

bool SimGroup::Pause(Duration length) {
  if (!up_ || paused_) return false;
  paused_ = true;
  ++faults_;
  world_->Schedule(world_->now() + length, EventKind::kGroupResumes, index_, life_);
  return true;
}

void SimGroup::OnResume(uint64_t life) {
  if (life != life_) return;
  paused_ = false;
  if (step_done_) {
    step_done_ = false;
    EndStep();
  } else {
    Tick();
  }
}

bool SimGroup::SlowDown(uint32_t factor, Time until) {
  if (!up_) return false;
  slowness_ = factor;
  slow_until_ = until;
  ++faults_;
  return true;
}

bool SimGroup::LieOnce() {
  if (!up_) return false;
  lie_ = true;
  ++faults_;
  return true;
}

bool SimGroup::RefuseNext(uint32_t count) {
  if (!up_) return false;
  refuse_ = count;
  return true;
}

bool SimGroup::RepeatOnce() {
  if (!up_) return false;
  repeat_ = true;
  return true;
}

void SimGroup::Receive(PeerId peer, RouterToWorker message) {
  if (!up_ || std::find(peers_.begin(), peers_.end(), peer) == peers_.end()) return;
  inbox_.push_back({peer, std::move(message)});
  Tick();
}

void SimGroup::Tick() {
  if (!up_ || paused_ || plans_in_flight_ > 0) return;
  DoTurn();
}

void SimGroup::DoTurn() {
  for (auto& [peer, message] : std::exchange(inbox_, {})) {
    if (std::holds_alternative<JoinRefused>(message)) {
      Kill({.restart_after = rng_.Between(10, 200) * kMillisecond,
            .deaths_to_come = deaths_to_come_ > 0 ? deaths_to_come_ - 1 : 0});
      return;
    }
    if (peer != peers_[0]) continue;  // other ranks only wait for rank 0
    if (const auto* start = std::get_if<GroupStart>(&message)) {
      StartLeader(*start);
    } else {
      Apply(std::get<Commands>(message));
    }
  }
  if (!scheduler_) return;
  if (report_due_) Report();
  if (draining_ && scheduler_->idle()) return Leave();
  PlanAhead();
}

void SimGroup::StartLeader(const GroupStart& start) {
  const SimOptions& options = world_->options();
  SchedulerConfig config;
  config.num_blocks = start.kv_blocks;
  config.max_batch_tokens = options.batch_tokens;
  config.max_sequences = static_cast<uint32_t>(start.kv_blocks);
  config.max_sample_rows = options.batch_tokens;
  config.max_seq_len = options.router.max_seq_len;
  config.vocab_size = options.router.vocab_size;
  config.plans_in_flight = options.plans_in_flight;
  scheduler_.emplace(config);
  report_due_ = true;
  OnHeartbeat(life_);
}

void SimGroup::Apply(const Commands& commands) {
  KVERN_CHECK_EQ(commands.group_incarnation, incarnation_);
  KVERN_CHECK_EQ(commands.sequence, acked_ + 1);
  acked_ = commands.sequence;
  report_due_ = true;
  Time now = world_->now();
  auto cancel_all = [&] {
    for (const CancelDispatch& cancel : commands.cancels) scheduler_->Cancel(now, cancel, effects_);
  };
  cancel_all();  // twice, as the production loop does
  for (const Dispatch& dispatch : commands.dispatches) {
    NoteSent(dispatch.request_id);
    if (refuse_ > 0) {
      --refuse_;
      effects_.nacks.push_back(
          {dispatch.request_id, dispatch.epoch, ErrorCode::kUnavailable, kMadeUp});
      continue;
    }
    by_seed_.Erase(dispatch.sampling.seed);
    by_seed_.Insert(dispatch.sampling.seed, {dispatch.request_id, {}});
    scheduler_->Accept(now, dispatch, effects_);
  }
  cancel_all();
  draining_ = draining_ || commands.drain;
}

void SimGroup::NoteSent(const RequestId& id) {
  if (world_->options().faults[Fault::kReportLies] == 0) return;  // nobody will ask
  if (sent_.Find(id) == nullptr) sent_.Insert(id, true);
}

void SimGroup::PlanAhead() {
  while (!scheduler_->full()) {
    StepPlan& plan = PlanAt(plans_in_flight_);
    if (!scheduler_->Plan(world_->now(), plan)) return;
    CountPreemptions(plan);
    if (++plans_in_flight_ == 1) BeginStep();
  }
}

void SimGroup::BeginStep() {
  const SimOptions& options = world_->options();
  StepWork work = FakeExecutor::WorkOf(RunningPlan());
  Duration length = StepTime(options.model_cost, options.device_cost, work);
  if (slowness_ > 1 && world_->now() < slow_until_) length *= slowness_;
  longest_step_ = std::max(longest_step_, length);
  ++totals_.steps;
  totals_.tokens_computed += work.tokens;
  world_->Schedule(world_->now() + length, EventKind::kGroupStepEnds, index_, life_);
}

void SimGroup::CountPreemptions(const StepPlan& plan) {
  for (const SequenceStart& start : plan.starts) {
    Running& running = by_seed_.At(start.sampling.seed);
    uint8_t starts = ++running.starts[start.choice];
    // The other choices begin as forks of the first.
    uint32_t preemptions = start.choice == 0 ? starts - 1u : starts;
    if (preemptions > 0) world_->checker().Preempted(running.id, preemptions);
  }
}

void SimGroup::OnStepEnd(uint64_t life) {
  if (life != life_) return;
  if (paused_) {
    step_done_ = true;
  } else {
    EndStep();
  }
}

void SimGroup::EndStep() {
  scheduler_->PrefetchCommit(2);
  executor_.Execute(RunningPlan(), result_);
  NotePrefill(RunningPlan());
  first_plan_ = (first_plan_ + 1) % plans_.size();
  if (--plans_in_flight_ > 0) BeginStep();
  step_id_ = result_.step_id;
  scheduler_->Commit(world_->now(), result_, effects_);
  ForgetEnded();
  report_due_ = true;
  DoTurn();
}

void SimGroup::NotePrefill(const StepPlan& plan) {
  uint32_t tokens = plan.NumTokens() - static_cast<uint32_t>(plan.rows.size());
  if (tokens < TellingPrefill(world_->options().batch_tokens)) return;
  if (prefills_since() == kTimeMax) prefills_since_ = world_->now();
  last_prefill_ = plan.step_id;
}

void SimGroup::ForgetEnded() {
  for (const TokenRun& run : effects_.runs) {
    if (run.finish_reason == FinishReason::kNone) continue;
    const Record* record = world_->checker().Find(run.request_id);
    if (record->n == 1 && record->has_seed) by_seed_.Erase(record->seed);
  }
}

void SimGroup::Report() {
  report_due_ = false;
  StepReport report;
  report.group_incarnation = incarnation_;
  report.step_id = step_id_;
  report.acked_command = acked_;
  scheduler_->FillReport(report);
  totals_.preemptions += report.preemptions - preemptions_;
  totals_.recomputed_tokens += report.recomputed_tokens - recomputed_tokens_;
  preemptions_ = report.preemptions;
  recomputed_tokens_ = report.recomputed_tokens;
  report.runs = std::exchange(effects_.runs, {});
  report.nacks = std::exchange(effects_.nacks, {});
  // S5 would be broken if the router had sent more than fits.
  for (const Nack& nack : report.nacks) {
    bool bad = nack.code == ErrorCode::kInvalidArgument &&
               world_->checker().Find(nack.request_id)->bad_ids;
    KVERN_CHECK(bad || nack.message == kMadeUp) << "nack: " << nack.message;
  }
  if (lie_) SpoilReport(report);
  if (std::exchange(repeat_, false)) {
    world_->ToRouter(peers_[0], WorkerSaid{peers_[0], report});
  }
  world_->ToRouter(peers_[0], WorkerSaid{peers_[0], std::move(report)});
}

void SimGroup::SpoilReport(StepReport& report) {
  lie_ = false;
  switch (report.runs.empty() ? 3 + rng_.Below(4) : rng_.Below(7)) {
    case 0:
      report.runs[0].token_ids[0] = world_->options().router.vocab_size;
      break;
    case 1:
      report.runs[0].choice = kMaxChoices;
      break;
    case 2:
      report.runs[0].position += 1;
      break;
    case 3:
      report.acked_command += 1000;
      lie_told_ = report;
      break;
    case 4:
      report.group_incarnation += 1;
      lie_told_ = report;
      break;
    case 5:
      SpeakForOthers(report);
      break;
    default:
      report.reserved_blocks += 1'000'000;
      lie_told_ = report;
      break;
  }
}

void SimGroup::SpeakForOthers(StepReport& report) {
  // The first token of a request that was sent elsewhere and has none yet.
  const Records& records = world_->checker().records();
  for (size_t i = records.size(); i-- > 0 && i + kFewRecords > records.size();) {
    const Record& record = records[i];
    RequestId id{uint64_t{record.client} + 1, i + 1};
    if (!record.dispatched || record.over || record.tokens > 0) continue;
    if (sent_.Find(id) != nullptr) continue;
    report.runs.push_back({id, 1, 0, 0, {1}, {}, FinishReason::kNone, {}});
    return;
  }
}

void SimGroup::OnHeartbeat(uint64_t life) {
  if (life != life_ || !up_) return;
  if (!paused_ && plans_in_flight_ == 0 && scheduler_) Report();
  world_->Schedule(world_->now() + world_->options().router.group_lease / 3,
                   EventKind::kGroupHeartbeat, index_, life);
}

void SimGroup::PrefetchStep(size_t stage) const {
  if (!scheduler_) return;
  scheduler_->PrefetchCommit(stage);
  if (stage == 0) {
    Prefetch(result_.samples.data());
    Prefetch(peers_.data());
    executor_.PrefetchSlots();
  } else {
    Prefetch(RunningPlan().rows.data());
  }
}

void SimGroup::Audit() const {
  if (scheduler_) scheduler_->Audit();
}

}  // namespace kvern::sim
