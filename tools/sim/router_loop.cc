// What stands in for router/io: messages under way, the inbox, one turn of the router.
#include <algorithm>
#include <utility>

#include "tools/sim/simulation.h"

namespace kvern::sim {
namespace {

// Messages that a peer may leave unread: the socket's queue and the port's.
constexpr uint32_t kMaxUnread = 2000;
constexpr Duration kReconnect = 100 * kMillisecond;
// Tokens that a client says were taken beyond what is true.
constexpr uint64_t kLie = 1000;

}  // namespace

void Simulation::Disconnect(PeerId peer, bool lose_tail) {
  network_.At(peer).open = false;
  network_.At(peer).lose_tail = lose_tail;
}

void Simulation::ToRouter(PeerId peer, RouterEvent&& event) {
  if (!SpoilCredit(peer, event)) Deliver(peer, std::move(event));
}

bool Simulation::SpoilCredit(PeerId peer, RouterEvent& event) {
  auto* said = std::get_if<ClientSaid>(&event);
  auto* consumed = said == nullptr ? nullptr : std::get_if<Consumed>(&said->message);
  if (consumed == nullptr) return false;
  if (faults_.Chance(Fault::kCreditLost)) return true;
  if (faults_.Chance(Fault::kCreditLies)) consumed->streams[0].tokens += kLie;
  if (!faults_.Chance(Fault::kCreditLate)) return false;
  After(network_.rng().Between(1, 3000) * kMillisecond,
        [this, peer, late = std::move(event)]() mutable { Deliver(peer, std::move(late)); });
  return true;
}

void Simulation::Deliver(PeerId peer, RouterEvent&& event) {
  Time at = network_.Arrival(now(), network_.At(peer).up);
  uint64_t slot = to_router_.Put({peer, std::move(event)});
  Schedule(at, EventKind::kRouterReceives, 0, slot);
}

void Simulation::RouterReceives(uint64_t slot) {
  UpMessage up = to_router_.Take(slot);
  const Connection& connection = network_.At(up.peer);
  if (!connection.open && connection.lose_tail) return;
  inbox_.push_back(std::move(up.event));
  WakeRouter(now() + network_.rng().Between(0, options_.router_turn));
}

void Simulation::WakeRouter(Time at) {
  if (at >= wake_at_) return;
  wake_at_ = at;
  Schedule(at, EventKind::kRouterTurn, 0, 0);
}

void Simulation::Step(RouterEvent&& event) {
  PeerId reporter = 0;
  bool lie = false;
  Heard heard;
  if (const auto* said = std::get_if<ClientSaid>(&event)) {
    const auto* request = std::get_if<GenerateRequest>(&said->message);
    if (request != nullptr) checker_.Arrived(now(), request->request_id);
    flow_.Hears(now(), *said);
  } else if (const auto* worker = std::get_if<WorkerSaid>(&event)) {
    const auto* report = std::get_if<StepReport>(&worker->message);
    if (report != nullptr) {
      reporter = worker->worker;
      lie = groups_[network_.At(reporter).owner]->IsLie(*report);
      if (hears_reports_) heard = HeardIn(*report);
    }
    const auto* leave = std::get_if<LeaveSoon>(&worker->message);
    if (leave != nullptr) leaving_[network_.At(worker->worker).owner] = leave->group_incarnation;
  }
  RouterBooks before;
  if (reporter != 0) before = front_end_->Books(now(), reporter);
  size_t said_before = effects_.to_workers.size();
  front_end_->Step(now(), std::move(event), effects_);
  if (reporter == 0) return;
  bool refused =
      std::any_of(effects_.to_workers.begin() + static_cast<ptrdiff_t>(said_before),
                  effects_.to_workers.end(), [&](const ToWorker& to) {
                    return to.worker == reporter && std::holds_alternative<JoinRefused>(to.message);
                  });
  if (lie && !refused) Violate("S11: a report that breaks the protocol was taken");
  Hear(network_.At(reporter).owner, heard, refused);
  if (refused) {
    // Some of its nacks may have counted.
    failures_[groups_[network_.At(reporter).owner]->name()].causes += heard.nacks.size();
  } else {
    CheckReport(reporter, before, heard);
  }
}

Simulation::Heard Simulation::HeardIn(const StepReport& report) {
  Heard heard;
  for (const TokenRun& run : report.runs) {
    auto size = static_cast<uint32_t>(run.token_ids.size());
    heard.runs.push_back({run.request_id, run.choice, run.position + size});
  }
  for (const Nack& nack : report.nacks) heard.nacks.push_back(nack);
  return heard;
}

void Simulation::Hear(uint32_t group, const Heard& heard, bool refused) {
  for (const Nack& nack : heard.nacks) {
    if (!refused) breaker_.Refused(now(), group, nack);
  }
  for (const Heard::Run& run : heard.runs) {
    Record* record = checker_.Find(run.id);
    bool its = record != nullptr && record->dispatched && record->group == group;
    if (!its || run.choice >= record->n) continue;
    uint32_t& before = record->choices[run.choice].heard;
    if (run.tokens <= before) continue;
    if (std::ranges::all_of(record->choices, [](const auto& c) { return c.heard == 0; })) {
      breaker_.FirstToken(group, run.id);
    }
    watch_.Heard(*record, run.tokens - before);
    before = run.tokens;
  }
  if (refused && !heard.runs.empty()) watch_.HeardRefused();
}

void Simulation::PrefetchReports(size_t at) {
  for (size_t stage = 0; stage < Router::kPrefetchStages; ++stage) {
    size_t i = at + Router::kPrefetchStages - stage;
    const auto* worker = i < reading_.size() ? std::get_if<WorkerSaid>(&reading_[i]) : nullptr;
    if (worker != nullptr) front_end_->PrefetchReport(worker->worker, stage);
  }
}

void Simulation::Turn() {
  effects_.Clear();
  std::vector<std::pair<PeerId, Incarnation>> hellos;
  reading_.clear();
  reading_.swap(inbox_);
  size_t events = reading_.size();
  for (size_t i = 0; i < events; ++i) {
    RouterEvent& event = reading_[i];
    PrefetchReports(i);
    if (const auto* said = std::get_if<ClientSaid>(&event)) {
      const auto* hello = std::get_if<Hello>(&said->message);
      if (hello != nullptr) hellos.emplace_back(said->client, hello->client_incarnation);
    }
    Step(std::move(event));
  }
  front_end_->Flush(now(), effects_);
  digest_.Add(static_cast<uint64_t>(now()));
  digest_.Add(effects_);
  if (tamper_) tamper_(now(), effects_);
  CheckCheaply(effects_);
  if (events != 1) lined_up_ = Sent();
  for (auto [peer, incarnation] : hellos) {
    checker_.Introduced(network_.At(peer).owner, incarnation);
  }
  Emit(effects_);
  wake_at_ = kTimeMax;
  if (front_end_->NextDeadline() != kTimeMax)
    WakeRouter(std::max(now() + 1, front_end_->NextDeadline()));
  if (options_.always_waiting > 0) KeepWaiting();
}

void Simulation::Emit(RouterEffects& effects) {
  for (ToClient& to : effects.to_clients) Send(to.client, std::move(to.message));
  for (ToWorker& to : effects.to_workers) Send(to.worker, std::move(to.message));
  for (Tokenize& tokenize : effects.tokenize) AnswerTokenize(tokenize);
}

void Simulation::Send(PeerId peer, std::variant<RouterToClient, RouterToWorker> message) {
  Connection& connection = network_.At(peer);
  if (connection.open && !connection.is_group && connection.unread >= kMaxUnread) {
    // As router/io does with a peer that does not read: it counts as gone.
    CutOff(connection.owner);
    inbox_.emplace_back(ClientUnreachable{peer});
    return WakeRouter(now() + 1);
  }
  ++connection.unread;
  Time at = network_.Arrival(now(), connection.down);
  uint64_t slot = to_peers_.Put({peer, std::move(message)});
  Schedule(at, EventKind::kPeerReceives, 0, slot);
}

void Simulation::CutOff(uint32_t client) {
  clients_[client]->Die(/*lose_tail=*/false);
  auto slot = std::find(slots_.begin(), slots_.end(), client);
  ReplaceClient(static_cast<size_t>(slot - slots_.begin()), kReconnect);
}

void Simulation::PeerReceives(uint64_t slot) {
  DownMessage down = to_peers_.Take(slot);
  Connection& connection = network_.At(down.peer);
  --connection.unread;
  if (connection.open) {
    if (connection.is_group) {
      groups_[connection.owner]->Receive(down.peer,
                                         std::get<RouterToWorker>(std::move(down.message)));
    } else {
      clients_[connection.owner]->Receive(std::get<RouterToClient>(down.message));
    }
    return;
  }
  // The socket may or may not have noticed yet.
  if (!network_.rng().Chance(1, 2)) return;
  if (connection.is_group) {
    inbox_.emplace_back(WorkerUnreachable{down.peer});
  } else {
    inbox_.emplace_back(ClientUnreachable{down.peer});
  }
  WakeRouter(now() + 1);
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
  Tokenized answer{tokenize.request_id, {}, ErrorCode::kNone, ""};
  // One letter, one token.
  for (char c : text) answer.ids.push_back(static_cast<uint32_t>(c - 'a') + 1);
  if (faults_.Chance(Fault::kTextIllFormed)) {
    answer.ids.clear();
    answer.error = ErrorCode::kInvalidArgument;
    answer.message = "ill-formed text";
  }
  bool slow = faults_.Chance(Fault::kTokenizerSlow);
  Duration delay = network_.rng().Between(50, slow ? 500'000 : 3'000) * kMicrosecond;
  After(delay, [this, answer = std::move(answer)]() mutable {
    inbox_.push_back(std::move(answer));
    WakeRouter(now() + 1);
  });
}

}  // namespace kvern::sim
