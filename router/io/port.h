// One ROUTER socket with the peers behind it: numbers them, sends to them, and notices when they
// are lost.
#pragma once

#include <cstdint>
#include <deque>
#include <list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "cluster/net/socket.h"
#include "router/core/router.h"

namespace kvern {

struct PortLimits {
  size_t max_peers = 0;         // above it the peer that was silent longest is given up
  size_t max_body_bytes = 0;    // of a frame that is sent
  size_t pending_messages = 0;  // for one peer, behind the full queue of its connection
  size_t pending_bytes = 0;
};

// Belongs to the router's thread. A peer is one process behind one connection: one (routing id,
// incarnation). A number is never reused, and a peer that was lost gets another one if it speaks
// again.
class Port {
 public:
  // What is sent; each of `attached` is a frame behind the body.
  struct Message {
    std::string body;
    std::vector<SharedBytes> attached;
    size_t bytes() const;
  };

  Port(RouterSocket socket, const PortLimits& limits)
      : socket_(std::move(socket)), limits_(limits) {}

  const RouterSocket& socket() const { return socket_; }

  // Never blocks. `routing_id` says who sent it, also of a malformed message.
  absl::StatusOr<ReceiveResult> Receive(std::string* routing_id, Frame* frame) {
    return socket_.Receive(routing_id, frame);
  }

  // The number of whoever sent a message just now; a new one for a stranger. Another incarnation
  // than before behind a routing id is another process: the old one is lost.
  PeerId Heard(std::string_view routing_id, Incarnation sender);

  // The number behind a routing id, 0: none.
  PeerId Find(std::string_view routing_id) const;

  // Sends, or keeps the message until the peer's queue has room. A peer that is gone or too slow is
  // lost (see TakeLost). An unknown number is ignored: the peer was lost a moment ago.
  absl::Status Send(PeerId peer, Message message);
  absl::Status Send(PeerId peer, std::string body) {
    return Send(peer, Message{std::move(body), {}});
  }

  // For one who has no number: sent now or not at all.
  absl::Status Reply(std::string_view routing_id, std::string body);

  // Tries what is pending again; true if something still is.
  absl::StatusOr<bool> Retry();
  bool HasPending() const { return !waiting_.empty(); }

  // Forgets the peer; TakeLost will name it.
  void Lose(PeerId peer);
  std::vector<PeerId> TakeLost() { return std::exchange(lost_, {}); }

  size_t num_peers() const { return peers_.size(); }

 private:
  struct Peer {
    PeerId id = 0;
    std::string routing_id;
    Incarnation incarnation = 0;
    std::deque<Message> pending;
    size_t pending_bytes = 0;
  };
  using PeerRef = std::list<Peer>::iterator;

  void Keep(Peer& peer, Message message);
  // Sends pending messages in order until one blocks. False: the peer is unreachable.
  absl::StatusOr<bool> SendPending(Peer& peer);

  RouterSocket socket_;
  PortLimits limits_;
  PeerId last_id_ = 0;
  std::list<Peer> peers_;  // least recently heard first
  absl::flat_hash_map<std::string, PeerRef> by_routing_id_;
  absl::flat_hash_map<PeerId, PeerRef> by_id_;
  std::vector<PeerId> waiting_;  // have pending messages; in order of their first
  std::vector<PeerId> lost_;
};

}  // namespace kvern
