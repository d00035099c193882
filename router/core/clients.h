// Who said Hello: clients, their open requests and the deltas waiting for the end of the turn.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cluster/base/id_map.h"
#include "cluster/base/time.h"
#include "router/core/request.h"
#include "router/core/router.h"

namespace kvern::router {

struct Tenant;

struct Client {
  PeerId id = 0;
  Incarnation incarnation = 0;
  Tenant* tenant = nullptr;
  Time last_heard = 0;         // of the time that the router listened
  Time quiet_since = 0;        // when it was heard last, or its last open request ended
  Time lease_at = kTimeMax;    // of its entry in Timers; kTimeMax: none
  std::vector<Request*> open;  // not answered
  std::vector<Delta> pending;  // of this turn, what one message holds
  uint64_t pending_bytes = 0;
  size_t last_pending = 0;    // how many there were when they were last sent
  bool gives_credit = false;  // of this incarnation
  uint64_t kept_bytes = 0;    // kept for its paused streams
};

// Bounded: when the table is full, of the clients without a request the one that has been quiet
// longest makes way (a ROUTER socket does not say when a peer is gone); one that is still there
// says Hello again. Pointers stay valid until the client is removed.
class ClientTable {
 public:
  explicit ClientTable(uint32_t max_clients) : max_clients_(max_clients) {}

  Client* Find(PeerId id);
  const Client* Find(PeerId id) const;
  bool full() const { return clients_.size() >= max_clients_; }
  // Who makes way. Null: all have open requests, or deltas that were not sent yet.
  Client* LongestQuiet();
  // REQUIRES: the id is not present, and the table is not full.
  Client& Add(PeerId id, Time now);
  // It said something: it is not quiet.
  void Heard(Client& client, Time now);
  // REQUIRES: it has no open request.
  void Remove(Client& client);

  void Open(Client& client, Request& request);
  void Close(Client& client, Request& request, Time now);

  // Puts a delta, of so many bytes, into the client's message of this turn. REQUIRES: there is
  // room.
  void Append(Client& client, Delta&& delta, uint64_t bytes);
  // Clients with pending deltas, by the first of them; clears the list.
  std::vector<PeerId> TakeDirty() { return std::exchange(dirty_, {}); }

  size_t size() const { return clients_.size(); }

 private:
  uint32_t max_clients_;
  IdMap<PeerId, std::unique_ptr<Client>> clients_;
  std::set<std::pair<Time, PeerId>> idle_;  // (quiet_since, id) of clients without open requests
  std::vector<PeerId> dirty_;
};

}  // namespace kvern::router
