#include "tests/sim/simulation.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/router/core/script.h"

namespace kvern::sim {
namespace {

// Long enough for every deadline, lease and restart to pass once the faults have stopped.
constexpr Duration kHealing = 60 * kSecond;
constexpr size_t kMaxViolations = 5;

}  // namespace

Simulation::Simulation(const SimOptions& options)
    : options_(options),
      load_rng_(Rng(options.seed).Fork(2)),
      fault_rng_(Rng(options.seed).Fork(3)),
      network_rng_(Rng(options.seed).Fork(4)),
      checker_([this](const std::string& what) { Violate(what); }),
      router_(ConfigOf(options), options.seed, &filters_),
      tamper_(options.bug, options.seed) {
  lose_tail_ = fault_rng_.Chance(1, 2);
  for (uint32_t i = 0; i < options.groups; ++i) {
    groups_.push_back(std::make_unique<SimGroup>(this, absl::StrCat("g", i), fault_rng_.Next()));
  }
}

RouterConfig Simulation::ConfigOf(const SimOptions& options) {
  RouterConfig config;
  config.model = "sim";
  config.has_tokenizer = true;
  config.max_seq_len = kMaxSeqLen;
  config.vocab_size = kVocab;
  config.eos_ids = {kEos};
  config.default_max_tokens = kDefaultMaxTokens;
  config.queue_entries = options.queue_entries;
  config.queue_bytes = options.queue_bytes;
  config.max_clients = options.clients + 2;
  config.client_lease = kClientLease;
  config.group_lease = kGroupLease;
  config.router_incarnation = 1;
  return config;
}

Duration Simulation::Delay() { return network_rng_.Between(1, options_.max_delay); }

void Simulation::ToRouter(Link& link, RouterEvent event, std::function<bool()> alive) {
  queue_.At(link.Arrival(now(), Delay()),
            [this, event = std::move(event), alive = std::move(alive)] {
              if (lose_tail_ && !alive()) return;
              inbox_.push_back(event);
              WakeRouter(now() + network_rng_.Between(0, 200) * kMicrosecond);
            });
}

void Simulation::WakeRouter(Time at) {
  if (at >= wake_at_) return;
  wake_at_ = at;
  queue_.At(at, [this, at] {
    if (at == wake_at_) Turn();
  });
}

void Simulation::Turn() {
  RouterEffects effects;
  for (RouterEvent& event : std::exchange(inbox_, {})) {
    if (const auto* said = std::get_if<ClientSaid>(&event)) {
      const auto* request = std::get_if<GenerateRequest>(&said->message);
      if (request != nullptr) checker_.Arrived(now(), request->request_id);
    }
    router_.Step(now(), std::move(event), effects);
    router_.Audit();
  }
  router_.Flush(now(), effects);
  router_.Audit();
  Digest(absl::StrCat(now(), "\n", EffectsText(effects)));
  tamper_.Apply(now(), effects);
  Emit(effects);
  CheckNotes(effects.notes);
  CheckState();
  wake_at_ = kTimeMax;
  if (router_.NextDeadline() != kTimeMax) WakeRouter(std::max(now() + 1, router_.NextDeadline()));
}

void Simulation::Emit(RouterEffects& effects) {
  for (const ToClient& to : effects.to_clients) EmitToClient(to);
  for (const ToWorker& to : effects.to_workers) EmitToWorker(to);
  for (Tokenize& tokenize : effects.tokenize) AnswerTokenize(tokenize);
}

void Simulation::EmitToClient(const ToClient& to) {
  if (const auto* accepted = std::get_if<Accepted>(&to.message)) {
    waiting_.push_back(accepted->request_id);
  }
  queue_.At(to_peers_[to.client].Arrival(now(), Delay()), [this, to] {
    for (auto& client : clients_) {
      if (client->id() != to.client) continue;
      if (client->alive()) return client->Receive(to.message);
      // The socket may or may not have noticed yet.
      if (!network_rng_.Chance(1, 2)) return;
      inbox_.push_back(ClientUnreachable{to.client});
      return WakeRouter(now() + 1);
    }
  });
}

void Simulation::EmitToWorker(const ToWorker& to) {
  CheckDispatches(to);
  queue_.At(to_peers_[to.worker].Arrival(now(), Delay()), [this, to] {
    for (auto& group : groups_) {
      if (group->up() && group->Owns(to.worker)) return group->Receive(to.worker, to.message);
    }
    if (!network_rng_.Chance(1, 2)) return;
    inbox_.push_back(WorkerUnreachable{to.worker});
    WakeRouter(now() + 1);
  });
}

void Simulation::AnswerTokenize(Tokenize& tokenize) {
  std::string text;
  if (auto* prompt = std::get_if<std::string>(&tokenize.input)) {
    text = std::move(*prompt);
  } else {
    for (const ChatMessage& m : std::get<std::vector<ChatMessage>>(tokenize.input)) {
      text += m.content;
    }
  }
  Tokenized answer{tokenize.request_id, FakeTokenize(text), ErrorCode::kNone, ""};
  if (load_rng_.Chance(1, 50)) {
    answer.ids.clear();
    answer.error = ErrorCode::kInvalidArgument;
    answer.message = "ill-formed text";
  }
  bool slow = load_rng_.Chance(1, 20);
  Duration delay = load_rng_.Between(50, slow ? 500'000 : 3'000) * kMicrosecond;
  After(delay, [this, answer = std::move(answer)] {
    inbox_.push_back(answer);
    WakeRouter(now() + 1);
  });
}

void Simulation::Digest(const std::string& text) {
  for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data() + i, std::min(sizeof(word), text.size() - i));
    hash_ = Mix64(hash_ ^ word);
  }
}

void Simulation::CheckDispatches(const ToWorker& to) {
  for (auto& group : groups_) {
    if (!group->Owns(to.worker)) continue;
    if (const auto* start = std::get_if<GroupStart>(&to.message)) {
      known_groups_[group->name()] = start->kv_blocks;
      if (start->kv_blocks != group->kv_blocks() &&
          start->group_incarnation == group->incarnation()) {
        violations_.push_back("a group's capacity is not the smallest of its ranks'");
      }
    }
    if (const auto* commands = std::get_if<Commands>(&to.message)) {
      for (const Dispatch& dispatch : commands->dispatches) {
        checker_.Dispatched(now(), dispatch, group->kv_blocks());
      }
    }
  }
}

void Simulation::Violate(const std::string& what) {
  violations_.push_back(absl::StrCat("at ", now() / kMicrosecond, " us: ", what));
}

void Simulation::CheckState() {
  RouterStatus status = router_.Status(now());
  lost_groups_ = status.counters.lost_groups;
  stale_runs_ = status.counters.stale_runs;
  if (status.queue_entries > options_.queue_entries || status.queue_bytes > options_.queue_bytes) {
    Violate(absl::StrCat("S6: the queue has ", status.queue_entries, " entries, ",
                         status.queue_bytes, " bytes"));
  }
  if (router_.NextDeadline() <= now()) Violate("S7: a timer is due after Flush");
  // A cancel reaches the worker between two steps, and its report the router: nothing else may
  // hold the blocks, unless the group sleeps.
  double limit = 2e-9 * static_cast<double>(options_.max_delay) + 0.05;
  for (double seconds : status.counters.cancel_to_free_seconds) {
    if (seconds > limit && options_.group_pauses == 0) {
      Violate(absl::StrCat("R6: blocks came back ", seconds, " s after the cancel"));
    }
  }
  for (const GroupStatus& seen : status.groups) {
    if (seen.live) CheckGroup(seen);
  }
  CheckWaiting();
}

void Simulation::CheckGroup(const GroupStatus& seen) {
  if (seen.drift_blocks != 0) {
    Violate(absl::StrCat("S5: drift of ", seen.name, " is ", seen.drift_blocks));
  }
  for (const auto& group : groups_) {
    if (group->name() != seen.name || !group->up() || group->scheduler() == nullptr) continue;
    uint64_t held = group->scheduler()->reserved_blocks();
    if (seen.reserved_blocks < held || held < group->scheduler()->used_blocks()) {
      Violate(absl::StrCat("S5: ", seen.name, " holds ", held, " blocks, the router counts ",
                           seen.reserved_blocks));
    }
  }
}

void Simulation::CheckWaiting() {
  uint64_t largest = 0;
  for (const auto& [name, blocks] : known_groups_) largest = std::max(largest, blocks);
  std::erase_if(waiting_, [&](const RequestId& id) {
    absl::StatusOr<RequestStatus> found = router_.Find(id);
    if (!found.ok() || found->state != "queued") return true;
    if (largest > 0 && found->needed_blocks > largest) {
      Violate(absl::StrCat("S8: a request that needs ", found->needed_blocks,
                           " blocks waits, the largest group has ", largest));
    }
    return false;
  });
}

void Simulation::CheckNotes(const std::vector<Note>& notes) {
  for (const Note& note : notes) {
    if (note.event != "group_lost") continue;
    for (const auto& group : groups_) {
      if (group->name() != note.fields[0].second) continue;
      if (++losses_[group->name()] > group->faults()) {
        Violate(absl::StrCat("L4: ", group->name(),
                             " was lost without a fault: ", note.fields[1].second));
      }
    }
  }
}

void Simulation::RunUntil(Time end) {
  while (!queue_.empty() && queue_.NextTime() <= end && violations_.size() < kMaxViolations) {
    queue_.RunNext();
  }
}

void Simulation::Run() {
  for (auto& group : groups_) group->Start();
  for (uint32_t i = 0; i < options_.clients; ++i) AddClient();
  ScheduleLoad();
  ScheduleFaults();
  RunUntil(options_.duration);
  faults_on_ = false;
  if (violations_.empty()) FinishLiveness();
}

void Simulation::FinishLiveness() {
  RunUntil(now() + kHealing);
  checker_.AllAnswered();  // L1
  RouterStatus status = router_.Status(now());
  uint64_t live = 0;
  for (const GroupStatus& group : status.groups) {
    live += group.live ? 1 : 0;
    if (group.reserved_blocks != 0 || group.used_blocks != 0) {
      violations_.push_back(absl::StrCat("L2: ", group.name, " still has ", group.reserved_blocks,
                                         " blocks reserved, ", group.used_blocks, " used"));
    }
  }
  if (live != options_.groups) {
    violations_.push_back(absl::StrCat("L4: ", live, " of ", options_.groups, " groups are live"));
  }
  if (status.queue_entries != 0 || status.queue_bytes != 0) {
    violations_.push_back(absl::StrCat("L2: ", status.queue_entries, " requests still wait"));
  }
  if (!violations_.empty()) return;
  inbox_.push_back(BeginDrain{});
  WakeRouter(now() + 1);
  RunUntil(now() + kHealing);
  bool left = std::all_of(groups_.begin(), groups_.end(), [](auto& g) { return g->left(); });
  if (!left || !router_.Drained()) violations_.push_back("L1: the drain does not end");
}

}  // namespace kvern::sim
