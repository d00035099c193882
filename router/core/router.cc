#include "router/core/router.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
RouterImpl::RouterImpl(const RouterConfig& config, uint64_t seed, const TextFilterFactory* text)
    : config_(config),
      rng_(seed),
      text_(text),
      clients_(config.max_clients),
      queue_(config.queue_entries, config.queue_bytes),
      tenants_(config.tenants) {
  KVERN_CHECK(config.max_seq_len > 0);
  KVERN_CHECK(config.vocab_size > 0);
  KVERN_CHECK(config.client_lease > 0);
  KVERN_CHECK(config.group_lease > 0);
  KVERN_CHECK(config.stream_window > 0);
  KVERN_CHECK(!config.has_tokenizer || text != nullptr);
  counters_.errors.resize(size_t{kLastErrorCode} + 1);
}

void RouterImpl::Step(Time now, RouterEvent event, RouterEffects& effects) {
  KVERN_CHECK_GE(now, now_);
  now_ = now;
  out_ = &effects;
  std::visit([this](auto& what) { On(what); }, event);
  out_ = nullptr;
}

void RouterImpl::Flush(Time now, const Hearing& heard, RouterEffects& effects) {
  KVERN_CHECK_GE(now, now_);
  now_ = now;
  heard_ = heard;
  out_ = &effects;
  RunTimers();  // here, not in Step: what was read counts before anyone is called silent
  DispatchWaiting();
  EndHopeless();
  DrainGroups();
  FlushCommands();
  for (PeerId peer : clients_.TakeDirty()) {
    if (Client* client = clients_.Find(peer)) FlushDeltas(*client);
  }
  out_ = nullptr;
}

void RouterImpl::On(ClientSaid& event) {
  if (const auto* hello = std::get_if<Hello>(&event.message)) {
    OnHello(event.client, *hello);
    return;
  }
  Client* client = clients_.Find(event.client);
  if (client == nullptr) {
    RequestError error{{}, ErrorCode::kInvalidArgument, kHelloFirst, {}};
    if (auto* m = std::get_if<GenerateRequest>(&event.message)) {
      error.request_id = m->request_id;
      ++counters_.errors[static_cast<size_t>(error.code)];
    }
    out_->to_clients.push_back({event.client, std::move(error)});
    return;
  }
  client->last_heard = Listened();
  clients_.Heard(*client, now_);
  if (auto* message = std::get_if<GenerateRequest>(&event.message)) {
    OnGenerate(*client, std::move(*message));
  } else if (auto* cancel = std::get_if<CancelRequest>(&event.message)) {
    OnCancel(*client, *cancel);
  } else if (std::holds_alternative<KeepAlive>(event.message)) {
    SendToClient(client->id, KeepAliveReply{CreditOf(*client->tenant)});
  } else if (auto* consumed = std::get_if<Consumed>(&event.message)) {
    OnConsumed(*client, *consumed);
  } else {
    SendToClient(client->id, Capacity());
  }
}

void RouterImpl::On(ClientUnreachable& event) {
  Client* client = clients_.Find(event.client);
  if (client == nullptr) return;
  CancelAll(*client, "the client is unreachable", /*tell=*/false);
  ForgetClient(*client);
}

void RouterImpl::On(Tokenized& event) {
  std::unique_ptr<Request>* found = requests_.Find(event.request_id);
  if (found == nullptr || (*found)->phase != Phase::kTokenizing) return;
  Request& request = **found;
  if (request.answered) {
    --withdrawn_;
    return Destroy(request);
  }
  queue_.EndText(request);
  request.phase = Phase::kArrived;
  if (event.error == ErrorCode::kNeverFits) {
    Fail(request, TextTooLong(request));
  } else if (event.error != ErrorCode::kNone) {
    Fail(request, {event.error, std::move(event.message), {}});
  } else if (Refusal r = ValidatePrompt(config_, event.ids); !r.ok()) {
    Fail(request, std::move(r));
  } else {
    Enqueue(request, std::move(event.ids));
  }
}

void RouterImpl::On(WorkerSaid& event) {
  if (auto* join = std::get_if<Join>(&event.message)) {
    OnJoin(event.worker, std::move(*join));
  } else if (auto* report = std::get_if<StepReport>(&event.message)) {
    OnReport(event.worker, std::move(*report));
  } else if (auto* down = std::get_if<GroupDown>(&event.message)) {
    OnGroupDown(*down);
  } else if (auto* leave = std::get_if<Leave>(&event.message)) {
    OnLeave(event.worker, *leave);
  } else {
    OnLeaveSoon(event.worker, std::get<LeaveSoon>(event.message));
  }
}

void RouterImpl::On(WorkerUnreachable& event) {
  Group* group = groups_.FindByPeer(event.worker);
  if (group != nullptr) LoseGroup(*group, "a rank is unreachable", /*tell=*/true);
}

void RouterImpl::On(BeginDrain&) {
  if (draining_) return;
  draining_ = true;
  AddNote(false, "draining", {{"open_requests", absl::StrCat(requests_.size())}});
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (group.state == GroupState::kJoining) RefuseGroup(group, "the router is draining");
    if (group.state == GroupState::kStarting) {
      LoseGroup(group, "the router is draining", /*tell=*/true);
    }
  }
}

void RouterImpl::On(Absent& event) {
  KVERN_CHECK_GE(event.time, 0);
  missed_ += event.time;
  AddNote(true, "router_was_stopped", {{"ms", absl::StrCat(event.time / kMillisecond)}});
}

Duration RouterImpl::Silence(Time since, Time heard, Duration allowed) const {
  Time until = std::max(heard, now_ - allowed) - missed_;
  return std::max<Duration>(until - since, 0);
}

void RouterImpl::RunTimers() {
  while (std::optional<Timer> timer = timers_.PopDue(now_)) {
    if (timer->kind == TimerKind::kRequest) OnRequestTimer(*timer);
    if (timer->kind == TimerKind::kClient) OnClientTimer(*timer);
    if (timer->kind == TimerKind::kGroup) OnGroupTimer(*timer);
  }
}

void RouterImpl::OnRequestTimer(const Timer& timer) {
  Request& request = *requests_.At({timer.high, timer.low});
  request.timer_at = kTimeMax;
  bool total = now_ >= request.deadline;
  if (request.kept != nullptr && !total) {
    Duration idle = Silence(request.took_at, heard_.clients, config_.slow_reader_timeout);
    if (idle < config_.slow_reader_timeout) return SetTimer(request, PausedUntil(request, idle));
    return FailSlowReader(request,
                          absl::StrCat("it took nothing for ", idle / kMillisecond, " ms"));
  }
  bool any_live = false;
  bool any_open = false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    any_live = any_live || groups_.at(i).live();
    any_open = any_open || groups_.at(i).open();
  }
  const char* state = request.phase == Phase::kRunning  ? "running"
                      : request.phase == Phase::kUnread ? "unread"
                      : any_open                        ? "waiting"
                      : any_live                        ? "waiting and every live group is draining"
                                                        : "waiting and no group is live";
  Refusal refusal{ErrorCode::kDeadlineExceeded,
                  absl::StrCat(total ? "deadline_ms" : request.TtftName(), " passed after ",
                               (now_ - request.arrival) / kMillisecond, " ms, the request was ",
                               state),
                  {}};
  // It waited for others; whoever asks again at once will, too.
  if (request.phase == Phase::kQueued && any_open) {
    refusal.details.retry_after_ms = Jittered(HalfQueueTime());
  }
  Fail(request, std::move(refusal));
}

void RouterImpl::AddNote(bool warning, std::string event,
                         std::vector<std::pair<std::string, std::string>> fields) {
  out_->notes.push_back({warning, std::move(event), std::move(fields)});
}

bool RouterImpl::Drained() const {
  if (!draining_ || !requests_.empty()) return false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    // Until it has left, or its lease is over: a router that goes first breaks its connection.
    if (groups_.at(i).live()) return false;
  }
  return true;
}

}  // namespace kvern::router

namespace kvern {

Router::Router(const RouterConfig& config, uint64_t seed, const TextFilterFactory* text)
    : impl_(std::make_unique<router::RouterImpl>(config, seed, text)) {}
Router::~Router() = default;
void Router::Step(Time now, RouterEvent event, RouterEffects& effects) {
  impl_->Step(now, std::move(event), effects);
}
void Router::Flush(Time now, const Hearing& heard, RouterEffects& effects) {
  impl_->Flush(now, heard, effects);
}
Time Router::NextDeadline() const { return impl_->NextDeadline(); }
bool Router::Drained() const { return impl_->Drained(); }
RouterStatus Router::Status(Time now) { return impl_->Status(now); }
void Router::PrefetchReport(PeerId rank, size_t stage) { impl_->PrefetchReport(rank, stage); }
RouterBooks Router::Books(Time now, PeerId rank) { return impl_->Books(now, rank); }
uint64_t Router::ReservedBlocks(PeerId rank) { return impl_->ReservedBlocks(rank); }
CapacityReply Router::Capacity() { return impl_->Capacity(); }
bool Router::IsOpen(const RequestId& id) { return impl_->IsOpen(id); }
absl::StatusOr<RequestStatus> Router::Find(const RequestId& id) { return impl_->Find(id); }
void Router::Audit() const { impl_->Audit(); }

}  // namespace kvern
