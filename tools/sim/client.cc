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

void SimClient::Start() { Say(Hello{SaidIncarnation(), tenant_name_, "sim"}); }

bool SimClient::Ask(sim::Ask ask) {
  if (!alive_ || paused_) return false;
  world_->checker().Issued(world_->now(), index_, tenant_, ask);
  RequestId id = ask.request.request_id;
  world_->checker().Find(id)->place = open_.size();
  open_.push_back(id);
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
  world_->checker().ClientLost(index_, open_, 0);
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
  world_->checker().ClientLost(index_, open_, SaidIncarnation());
  open_.clear();
  Start();
  return true;
}

void SimClient::OnResume() {
  paused_ = false;
  for (const RouterToClient& message : std::exchange(unread_, {})) Read(message);
  if (alive_ && !open_.empty()) Say(KeepAlive{});
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
  world_->checker().Read(world_->now(), index_, message, ended_);
  for (const RequestId& id : ended_) Close(id);
  // Forgotten by the router while idle: introduce ourselves again.
  const auto* error = std::get_if<RequestError>(&message);
  if (error != nullptr && error->message == kSayHello) Start();
}

void SimClient::Close(const RequestId& id) {
  size_t place = world_->checker().Find(id)->place;
  open_[place] = open_.back();
  world_->checker().Find(open_[place])->place = place;
  open_.pop_back();
}

void SimClient::OnKeepAlive() {
  if (!alive_ || open_.empty()) {
    keeping_alive_ = false;
    return;
  }
  if (!paused_) Say(KeepAlive{});
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
