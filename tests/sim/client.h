// A client: asks, reads, keeps alive, cancels, and at times falls silent or dies.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/sim/world.h"

namespace kvern::sim {

class SimClient {
 public:
  SimClient(World* world, PeerId id, uint64_t seed);

  void Start();  // says Hello
  void Ask();    // a request, drawn
  void Die();
  void Pause(Duration length);
  void Receive(const RouterToClient& message);

  bool alive() const { return alive_; }
  PeerId id() const { return id_; }

 private:
  GenerateRequest Draw();
  void DrawLengths(GenerateRequest& request);
  void Read(const RouterToClient& message);
  void KeepAliveLoop();
  void Send(ClientMessage message);
  bool Open(const RequestId& id) const;

  World* world_;
  PeerId id_;
  Rng rng_;
  Link link_;
  bool alive_ = true;
  bool paused_ = false;
  bool keeping_alive_ = false;
  std::vector<RequestId> open_;
  std::vector<RouterToClient> unread_;  // while paused
  uint64_t asked_ = 0;
};

}  // namespace kvern::sim
