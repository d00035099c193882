#include "tools/sim/client.h"

#include <utility>

#include "tools/sim/checker.h"

namespace kvern::sim {

SimClient::SimClient(World* world, uint32_t index, uint32_t tenant, std::string tenant_name)
    : world_(world),
      index_(index),
      tenant_(tenant),
      tenant_name_(std::move(tenant_name)),
      peer_(world->ConnectClient(index)) {}

void SimClient::Start() { Say(Hello{SaidIncarnation(), tenant_name_, "sim", gives_credit()}); }

bool SimClient::gives_credit() const {
  return world_->options().half_give_credit && index_ % 2 == 0;
}

bool SimClient::Ask(sim::Ask ask) {
  if (!alive_ || paused_) return false;
  world_->checker().Issued(world_->now(), index_, tenant_, ask);
  RequestId id = ask.request.request_id;
  world_->checker().Find(id)->place = static_cast<uint32_t>(open_.size());
  open_.push_back(id);
  readers_.push_back({.delay = ask.read_delay, .gap = ask.read_gap});
  if (ask.repeated) Say(ask.request);
  Say(std::move(ask.request));
  if (ask.cancel_after >= 0) {
    world_->Schedule(world_->now() + ask.cancel_after, EventKind::kClientCancels, index_, id.low);
  }
  if (!keeping_alive_) {
    keeping_alive_ = true;
    OnKeepAlive();
  }
  return true;
}

void SimClient::Die(bool lose_tail) {
  alive_ = false;
  Lose(0);
  world_->Disconnect(peer_, lose_tail);
}

bool SimClient::Pause(Duration length) {
  if (!alive_ || paused_) return false;
  paused_ = true;
  world_->Schedule(world_->now() + length, EventKind::kClientResumes, index_, 0);
  return true;
}

bool SimClient::Restart() {
  if (!alive_ || paused_) return false;
  ++incarnation_;
  Lose(SaidIncarnation());
  open_.clear();
  readers_.clear();
  twice_.clear();
  Start();
  return true;
}

void SimClient::Lose(Incarnation heir) {
  world_->checker().ClientLost(index_, open_, heir);
  world_->checker().ClientLost(index_, twice_, heir);
}

void SimClient::OnResume() {
  paused_ = false;
  for (const RouterToClient& message : std::exchange(unread_, {})) Read(message);
  if (!alive_ || open_.empty()) return;
  Say(KeepAlive{});
  for (const RequestId& id : open_) Wake(id);
}

void SimClient::Receive(const RouterToClient& message) {
  if (!alive_) return;
  if (paused_) {
    unread_.push_back(message);
  } else {
    Read(message);
  }
}

void SimClient::Read(const RouterToClient& message) {
  if (!alive_) return;
  ended_.clear();
  if (const auto* welcome = std::get_if<Welcome>(&message)) window_ = welcome->stream_window;
  world_->checker().Read(world_->now(), index_, message, ended_);
  for (const RequestId& id : ended_) Close(id);
  if (const auto* deltas = std::get_if<Deltas>(&message)) {
    for (const Delta& delta : deltas->deltas) Wake(delta.request_id);
  }
  // Forgotten by the router while idle: introduce ourselves again.
  const auto* error = std::get_if<RequestError>(&message);
  if (error != nullptr && error->message == kSayHello) Start();
}

void SimClient::Close(const RequestId& id) {
  if (world_->checker().Find(id)->repeated) twice_.push_back(id);
  uint32_t place = world_->checker().Find(id)->place;
  open_[place] = open_.back();
  readers_[place] = readers_.back();
  world_->checker().Find(open_[place])->place = place;
  open_.pop_back();
  readers_.pop_back();
}

void SimClient::Wake(const RequestId& id) {
  if (window_ == 0) return;
  const Record& record = *world_->checker().Find(id);
  if (record.over || record.client_lost) return;
  Reader& reader = readers_[record.place];
  if (reader.waits || reader.taken == record.tokens) return;
  Duration wait = reader.taken == 0 ? reader.delay + reader.gap : reader.gap;
  if (wait == 0) return Take(id, reader);
  reader.waits = true;
  world_->Schedule(world_->now() + wait, EventKind::kClientTakes, index_, id.low);
}

void SimClient::Take(const RequestId& id, Reader& reader) {
  uint64_t received = world_->checker().Find(id)->tokens;
  reader.taken = reader.gap == 0 ? received : reader.taken + 1;
  // By half windows, as the clients of this tree do.
  if (reader.taken - reader.told < (uint64_t{window_} + 1) / 2) return;
  reader.told = reader.taken;
  Say(Consumed{{{id, reader.told}}});
}

void SimClient::OnTake(uint64_t request) {
  RequestId id{uint64_t{index_} + 1, request};
  const Record& record = *world_->checker().Find(id);
  if (!alive_ || record.over || record.client_lost) return;
  Reader& reader = readers_[record.place];
  reader.waits = false;
  if (paused_) return;  // it goes on when its process does
  Take(id, reader);
  Wake(id);
}

void SimClient::TellAll() {
  Consumed consumed;
  for (size_t i = 0; i < open_.size(); ++i) {
    Reader& reader = readers_[i];
    if (reader.taken == reader.told) continue;
    reader.told = reader.taken;
    consumed.streams.push_back({open_[i], reader.told});
  }
  if (!consumed.streams.empty()) Say(std::move(consumed));
}

void SimClient::Claim(const RequestId& id) {
  if (alive_) Say(Consumed{{{id, UINT64_MAX}}});
}

void SimClient::OnKeepAlive() {
  if (!alive_ || open_.empty()) {
    keeping_alive_ = false;
    return;
  }
  if (!paused_) {
    TellAll();
    Say(KeepAlive{});
  }
  world_->Schedule(world_->now() + kSecond, EventKind::kClientKeepAlive, index_, 0);
}

void SimClient::Cancel(const RequestId& id) {
  if (!alive_) return;
  world_->checker().Cancelled(index_, id);
  Say(CancelRequest{id});
}

void SimClient::OnCancel(uint64_t request) {
  RequestId id{uint64_t{index_} + 1, request};
  if (!paused_ && !world_->checker().Find(id)->over) Cancel(id);
}

void SimClient::CancelAll() {
  for (const RequestId& id : open_) Cancel(id);
}

void SimClient::Say(ClientMessage message) {
  ClientSaid said;
  said.client = peer_;
  said.message = std::move(message);
  world_->ToRouter(peer_, std::move(said));
}

}  // namespace kvern::sim
