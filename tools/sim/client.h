// A client: asks, reads, keeps alive, cancels, and at times falls silent or dies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/sim/workload.h"
#include "tools/sim/world.h"

namespace kvern::sim {

class SimClient {
 public:
  // `index`: its place among the clients; comes back in its events.
  SimClient(World* world, uint32_t index, uint32_t tenant, std::string tenant_name);

  void Start();  // says Hello
  // Asks, and cancels as the ask says if the answer is then still open. False: it cannot now.
  bool Ask(sim::Ask ask);
  void Cancel(const RequestId& id);

  // ---- faults
  void Die(bool lose_tail);
  // Falls silent for a while, then reads what it missed. False: it is silent already.
  bool Pause(Duration length);
  // Another process over the same connection. False: it is silent now.
  bool Restart();

  void Receive(const RouterToClient& message);
  // Gives up everything that is open.
  void CancelAll();

  // ---- events
  void OnKeepAlive();
  void OnResume();
  void OnCancel(uint64_t request);  // the low half of its id

  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  PeerId peer() const { return peer_; }
  uint32_t tenant() const { return tenant_; }

 private:
  void Read(const RouterToClient& message);
  void Close(const RequestId& id);
  void Say(ClientMessage message);
  Incarnation SaidIncarnation() const { return (peer_ << 8) + incarnation_; }

  World* world_;
  uint32_t index_;
  uint32_t tenant_;
  std::string tenant_name_;
  PeerId peer_;
  Incarnation incarnation_ = 1;
  bool alive_ = true;
  bool paused_ = false;
  bool keeping_alive_ = false;
  std::vector<RequestId> open_;
  std::vector<RequestId> ended_;
  std::vector<RouterToClient> unread_;  // while paused
};

}  // namespace kvern::sim
