#include "router/io/port.h"

#include <algorithm>

namespace kvern {

size_t Port::Message::bytes() const {
  size_t total = body.size();
  for (const SharedBytes& frame : attached) total += frame.bytes.size();
  return total;
}

PeerId Port::Find(std::string_view routing_id) const {
  auto found = by_routing_id_.find(ToAbsl(routing_id));
  return found == by_routing_id_.end() ? 0 : found->second->id;
}

PeerId Port::Heard(std::string_view routing_id, Incarnation sender) {
  auto found = by_routing_id_.find(ToAbsl(routing_id));
  if (found != by_routing_id_.end()) {
    PeerRef peer = found->second;
    // 0: a writer that does not say. It is taken for the one that was there.
    if (sender == 0 || peer->incarnation == 0 || sender == peer->incarnation) {
      if (sender != 0) peer->incarnation = sender;
      peers_.splice(peers_.end(), peers_, peer);
      return peer->id;
    }
    Lose(peer->id);
  }
  if (peers_.size() >= limits_.max_peers) Lose(peers_.front().id);
  PeerRef peer = peers_.emplace(peers_.end());
  peer->id = ++last_id_;
  peer->routing_id = routing_id;
  peer->incarnation = sender;
  by_routing_id_.emplace(peer->routing_id, peer);
  by_id_.emplace(peer->id, peer);
  return peer->id;
}

void Port::Lose(PeerId id) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return;
  PeerRef peer = found->second;
  if (!peer->pending.empty()) waiting_.erase(std::find(waiting_.begin(), waiting_.end(), id));
  by_routing_id_.erase(peer->routing_id);
  by_id_.erase(found);
  peers_.erase(peer);
  lost_.push_back(id);
}

absl::Status Port::Send(PeerId id, Message message) {
  auto found = by_id_.find(id);
  if (found == by_id_.end()) return absl::OkStatus();
  Peer& peer = *found->second;
  bool too_large = message.body.size() > limits_.max_body_bytes;
  for (const SharedBytes& frame : message.attached) {
    too_large = too_large || frame.bytes.size() > limits_.max_body_bytes;
  }
  if (too_large) {
    Lose(id);  // It would cut us off.
    return absl::OkStatus();
  }
  if (!peer.pending.empty()) {
    Keep(peer, std::move(message));
    return absl::OkStatus();
  }
  KVERN_ASSIGN_OR_RETURN(SendResult result,
                         socket_.Send(peer.routing_id, message.body, message.attached));
  if (result == SendResult::kUnreachable) Lose(id);
  if (result == SendResult::kWouldBlock) Keep(peer, std::move(message));
  return absl::OkStatus();
}

void Port::Keep(Peer& peer, Message message) {
  size_t bytes = message.bytes();
  if (peer.pending.size() >= limits_.pending_messages ||
      peer.pending_bytes + bytes > limits_.pending_bytes) {
    Lose(peer.id);
    return;
  }
  if (peer.pending.empty()) waiting_.push_back(peer.id);
  peer.pending_bytes += bytes;
  peer.pending.push_back(std::move(message));
}

absl::Status Port::Reply(std::string_view routing_id, std::string body) {
  return socket_.Send(routing_id, body).status();
}

absl::StatusOr<bool> Port::SendPending(Peer& peer) {
  while (!peer.pending.empty()) {
    Message& message = peer.pending.front();
    size_t bytes = message.bytes();
    KVERN_ASSIGN_OR_RETURN(SendResult result,
                           socket_.Send(peer.routing_id, message.body, message.attached));
    if (result == SendResult::kUnreachable) return false;
    if (result == SendResult::kWouldBlock) return true;
    peer.pending_bytes -= bytes;
    peer.pending.pop_front();
  }
  return true;
}

absl::StatusOr<bool> Port::Retry() {
  std::vector<PeerId> still;
  std::vector<PeerId> gone;
  for (PeerId id : waiting_) {
    Peer& peer = *by_id_.at(id);
    KVERN_ASSIGN_OR_RETURN(bool reachable, SendPending(peer));
    if (!reachable) {
      gone.push_back(id);
      still.push_back(id);  // Lose takes it from the list.
    } else if (!peer.pending.empty()) {
      still.push_back(id);
    }
  }
  waiting_ = std::move(still);
  for (PeerId id : gone) Lose(id);
  return HasPending();
}

}  // namespace kvern
