// A client: asks, reads, keeps alive, cancels, and at times falls silent or dies.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/sim/world.h"

namespace kvern::sim {

class SimClient {
 public:
  // `index`: its place among the clients; comes back in its events.
  SimClient(World* world, uint32_t index, uint32_t tenant, std::string tenant_name);

  void Start();  // says Hello
  // Asks, and cancels after `cancel_after` if that is >= 0 and the answer is still open.
  void Ask(GenerateRequest request, Duration cancel_after);
  void Die(bool lose_tail);
  void Pause(Duration length);
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

  World* world_;
  uint32_t index_;
  uint32_t tenant_;
  std::string tenant_name_;
  PeerId peer_;
  bool alive_ = true;
  bool paused_ = false;
  bool keeping_alive_ = false;
  std::vector<RequestId> open_;
  std::vector<RequestId> ended_;
  std::vector<RouterToClient> unread_;  // while paused
};

}  // namespace kvern::sim
