#include "tools/sim/simulation.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/base/prefetch.h"
#include "tools/sim/least_requests.h"
#include "tools/sim/optimistic_router.h"

namespace kvern::sim {
namespace {

constexpr size_t kMaxViolations = 5;
constexpr Duration kSampleEvery = kSecond;
// Long enough for a drain, and for every lease and restart, once the load has stopped.
constexpr Duration kDrain = 60 * kSecond;

std::unique_ptr<FrontEnd> NewFrontEnd(const SimOptions& options, const TextFilterFactory* filters) {
  if (options.least_requests) return std::make_unique<LeastRequests>(options.router);
  if (options.optimistic) {
    return std::make_unique<RouterFrontEnd<OptimisticRouter>>(options.router, options.seed, filters,
                                                              *options.optimistic);
  }
  return std::make_unique<RouterFrontEnd<Router>>(options.router, options.seed, filters);
}

std::vector<uint32_t> WeightsOf(const SimOptions& options, const Workload& workload) {
  std::vector<uint32_t> weights;
  for (const std::string& tenant : workload.tenants()) {
    weights.push_back(1);
    for (const TenantConfig& config : options.router.tenants) {
      if (config.name == tenant) weights.back() = config.weight;
    }
  }
  return weights;
}

}  // namespace

Simulation::Simulation(const SimOptions& options, Workload& workload,
                       const TextFilterFactory* filters)
    : options_(options),
      workload_(workload),
      network_(options.min_delay, options.max_delay, Rng(options.seed).Fork(4)),
      faults_(this, this, Rng(options.seed).Fork(3)),
      checker_(options, workload.tenants(), [this](const std::string& what) { Violate(what); }),
      watch_(WeightsOf(options, workload), checker_,
             [this](const std::string& what) { Violate(what); }),
      breaker_(options.groups, checker_, [this](const std::string& what) { Violate(what); }),
      front_end_(NewFrontEnd(options, filters)),
      flow_(options, *front_end_, checker_, [this](const std::string& what) { Violate(what); }) {
  for (uint32_t i = 0; i < options.groups; ++i) {
    groups_.push_back(std::make_unique<SimGroup>(this, i, HashCounter(options.seed, 5, i)));
    group_by_name_[groups_.back()->name()] = i;
  }
  sent_.resize(groups_.size());
  leaving_.resize(groups_.size());
  slots_.resize(workload.clients().size());
  hears_reports_ = workload.tenants().size() > 1 || NamesOf(options.faults) != "none";
  groups_delay_ = options.faults.AnyOf(
      {Fault::kGroupFrozen, Fault::kGroupFrozenLong, Fault::kGroupSlow, Fault::kGroupPartitioned,
       Fault::kGroupDeaf, Fault::kGroupMute, Fault::kGroupLinkSlow});
}

void Simulation::After(Duration delay, std::function<void()> action) {
  Schedule(now() + delay, EventKind::kCall, 0, calls_.Put(std::move(action)));
}

void Simulation::AddClient(uint32_t slot) {
  uint32_t tenant = workload_.clients()[slot];
  auto index = static_cast<uint32_t>(clients_.size());
  clients_.push_back(std::make_unique<SimClient>(this, index, tenant, workload_.tenants()[tenant]));
  slots_[slot] = index;
  clients_.back()->Start();
}

void Simulation::Handle(const Event& event) {
  switch (event.kind) {
    case EventKind::kCall:
      return calls_.Take(event.value)();
    case EventKind::kArrival:
      return AskNext();
    case EventKind::kRouterTurn:
      if (event.at == wake_at_) Turn();
      return;
    case EventKind::kRouterReceives:
      return RouterReceives(event.value);
    case EventKind::kPeerReceives:
      return PeerReceives(event.value);
    case EventKind::kSample:
      return Sample();
    case EventKind::kFault:
      return faults_.Happen(Fault(event.value));
    case EventKind::kClientKeepAlive:
    case EventKind::kClientResumes:
    case EventKind::kClientCancels:
    case EventKind::kClientTakes:
      return HandleClient(event);
    case EventKind::kGroupStarts:
    case EventKind::kGroupStepEnds:
    case EventKind::kGroupHeartbeat:
    case EventKind::kGroupResumes:
    case EventKind::kGroupDies:
    case EventKind::kRankJoins:
      return HandleGroup(event);
  }
}

void Simulation::HandleClient(const Event& event) {
  SimClient& client = *clients_[event.index];
  if (event.kind == EventKind::kClientKeepAlive) client.OnKeepAlive();
  if (event.kind == EventKind::kClientResumes) client.OnResume();
  if (event.kind == EventKind::kClientCancels) client.OnCancel(event.value);
  if (event.kind == EventKind::kClientTakes) client.OnTake(event.value);
}

void Simulation::HandleGroup(const Event& event) {
  SimGroup& group = *groups_[event.index];
  if (event.kind == EventKind::kGroupStarts) group.OnStart(event.value);
  if (event.kind == EventKind::kGroupStepEnds) group.OnStepEnd(event.value);
  if (event.kind == EventKind::kGroupHeartbeat) group.OnHeartbeat(event.value);
  if (event.kind == EventKind::kGroupResumes) group.OnResume(event.value);
  if (event.kind == EventKind::kGroupDies) group.OnDeath(event.value);
  if (event.kind == EventKind::kRankJoins) group.OnRankJoins(event.value);
}

void Simulation::ReplaceClient(size_t slot, Duration delay) {
  After(delay, [this, slot] { AddClient(static_cast<uint32_t>(slot)); });
}

void Simulation::ScheduleNextAsk() {
  if (++asked_ > options_.max_requests) return;
  next_ask_ = workload_.Next();
  if (next_ask_) Schedule(std::max(now(), next_ask_->at), EventKind::kArrival, 0, 0);
}

void Simulation::AskNext() {
  if (!load_on_) return;
  Ask ask = *std::move(next_ask_);
  faults_.Spoil(ask);
  AskFor(std::move(ask));
  ScheduleNextAsk();
}

void Simulation::AskFor(Ask ask) {
  SimClient& client = ClientIn(ask.client);
  if (ask.cancel_foreign && !checker_.records().empty()) {
    const Record& other = checker_.records().back();
    if (other.client != slots_[ask.client]) {
      RequestId id{uint64_t{other.client} + 1, checker_.records().size()};
      client.Cancel(id);
      client.Claim(id);
    }
  }
  client.Ask(std::move(ask));
}

void Simulation::KeepWaiting() {
  // Those that were asked for and have not reached the queue yet count as waiting.
  uint64_t started = 0;
  for (const auto& group : groups_) {
    if (group->scheduler() != nullptr) started += group->scheduler()->running();
  }
  while (load_on_ && checker_.open() < started + options_.always_waiting) {
    if (asked_ == options_.max_requests) return;
    ++asked_;
    std::optional<Ask> ask = workload_.Next();
    if (!ask) return;
    AskFor(*std::move(ask));
  }
}

void Simulation::Sample() {
  RouterStatus status = TakeStatus();
  KvSample sample;
  sample.at = now();
  sample.queue_entries = status.queue_entries;
  for (const GroupStatus& group : status.groups) {
    sample.used_blocks += group.used_blocks;
    sample.reserved_blocks += group.reserved_blocks;
    sample.total_blocks += group.total_blocks;
    bool in_window = now() >= options_.warm_up && now() < options_.duration;
    if (!in_window || !group.live) continue;
    GroupUse& use = group_use_[group.name];
    ++use.samples;
    use.used_blocks += group.used_blocks;
    use.total_blocks += group.total_blocks;
    use.running += group.running;
  }
  kv_samples_.push_back(sample);
  if (load_on_) Schedule(now() + kSampleEvery, EventKind::kSample, 0, 0);
}

void Simulation::PrefetchSoon() const {
  static constexpr size_t kEventsAhead[] = {5, 2, 0};  // at each stage
  auto group = [this](size_t stage) -> const SimGroup* {
    const Event* soon = queue_.Soon(kEventsAhead[stage]);
    bool ends = soon != nullptr && soon->kind == EventKind::kGroupStepEnds;
    return ends ? groups_[soon->index].get() : nullptr;
  };
  if (const SimGroup* first = group(0)) Prefetch(first);
  if (const SimGroup* second = group(1)) second->PrefetchStep(0);
  if (const SimGroup* third = group(2)) {
    third->PrefetchStep(1);
    Prefetch(&network_.At(third->peers()[0]));
  }
}

void Simulation::RunUntil(Time end) {
  while (!queue_.empty() && queue_.NextTime() <= end && violations_.size() < kMaxViolations) {
    Event event = queue_.Pop();
    PrefetchSoon();
    Handle(event);
    if (queue_.executed() >= next_full_check_) CheckFully();
  }
}

void Simulation::Run() {
  for (auto& group : groups_) group->Start();
  for (uint32_t slot = 0; slot < slots_.size(); ++slot) AddClient(slot);
  Schedule(now() + kSampleEvery, EventKind::kSample, 0, 0);
  faults_.ScheduleAll();
  if (options_.always_waiting == 0) ScheduleNextAsk();
  RunUntil(options_.duration);
  load_on_ = false;
  if (violations_.empty()) FinishLiveness();
  counters_ = TakeStatus().counters;
}

bool Simulation::Quiet() {
  if (checker_.open() > 0) return false;
  for (const auto& group : groups_) {
    // Not healed yet, though the router may still take it for live.
    bool well = group->up() && !group->paused() && !group->doomed();
    if (!well || group->scheduler() == nullptr) return false;
    for (PeerId peer : group->peers()) {
      const Connection& link = network_.At(peer);
      // Its last word may come too late on a link that is still slow, or none at all.
      for (const auto& way : {link.up, link.down}) {
        if (std::max(way.blocked_until, way.slow_until) > now()) return false;
      }
    }
  }
  RouterStatus status = TakeStatus();
  uint64_t live = 0;
  for (const GroupStatus& group : status.groups) {
    // What it said last may be under way on a link that is still slow: it may yet be given up.
    bool heard = group.report_age < options_.router.group_lease / 2;
    live += group.live && heard ? 1 : 0;
    if (group.reserved_blocks != 0 || group.used_blocks != 0) return false;
  }
  return live == options_.groups && status.queue_entries == 0 && status.paused_streams == 0;
}

void Simulation::AskOnceMore() {
  // A group that failed often is tried after a minute at the latest.
  constexpr Duration kPatience = 90 * kSecond;
  auto client = std::ranges::find_if(clients_, [this](const auto& one) {
    return one->alive() && !one->paused() && !checker_.HasQuota(one->tenant());
  });
  if (client == clients_.end()) return;
  for (auto& group : groups_) group->BehaveAgain();
  ErrorCode error = ErrorCode::kNone;
  // A client that was forgotten is told to say Hello again, and what was the matter with a group
  // may be noticed only now.
  for (int attempt = 0; attempt < 3; ++attempt, RunUntil(now() + kSecond)) {
    Ask ask;
    ask.request.prompt_token_ids = TokenIds({1});
    ask.request.max_tokens = 1;
    ask.request.ttft_deadline_ms = static_cast<uint32_t>(kPatience / kMillisecond);
    (*client)->Ask(std::move(ask));
    const Record& record = checker_.records().back();
    for (Time end = now(); end < record.asked + kPatience && !record.over; end += kSecond) {
      RunUntil(end + kSecond);
    }
    error = record.error;
    if (record.over && error == ErrorCode::kNone) return RunUntilQuiet();
  }
  Violate(absl::StrCat("L6: all is well, and a request is not served: ",
                       ToAbsl(ErrorCodeName(error))));
}

void Simulation::RunUntilQuiet() {
  // The clock stands at the last event, which may be long before the end of the wait.
  Time last = now() + options_.healing;
  for (Time end = now(); end < last && !Quiet() && violations_.empty(); end += kSecond) {
    RunUntil(end + kSecond);
  }
}

void Simulation::FinishLiveness() {
  if (options_.cancel_at_end) {
    for (auto& client : clients_) client->CancelAll();
  }
  RunUntilQuiet();
  CheckEnd();
  if (options_.ask_at_end && violations_.empty()) AskOnceMore();
  if (!violations_.empty()) return;
  inbox_.emplace_back(BeginDrain{});
  WakeRouter(now() + 1);
  RunUntil(now() + kDrain);
  bool left = std::all_of(groups_.begin(), groups_.end(), [](auto& g) { return g->left(); });
  if (!left || !front_end_->Drained()) Violate("L1: the drain does not end");
}

}  // namespace kvern::sim
