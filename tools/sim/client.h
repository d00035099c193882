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
  // Says that all of a stream was taken, which need not be its own.
  void Claim(const RequestId& id);

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
  void OnTake(uint64_t request);

  bool alive() const { return alive_; }
  bool paused() const { return paused_; }
  bool gives_credit() const;
  PeerId peer() const { return peer_; }
  uint32_t tenant() const { return tenant_; }

 private:
  void Read(const RouterToClient& message);
  // The reader of one stream.
  struct Reader {
    Duration delay = 0;  // to its first token
    Duration gap = 0;    // between two; 0: takes all that is there
    bool waits = false;  // an event will wake it
    uint64_t taken = 0;
    uint64_t told = 0;
  };

  // The process is gone. `heir`: the incarnation of the next one over this connection; 0: none.
  void Lose(Incarnation heir);
  void Close(const RequestId& id);
  // Tokens have come: its reader takes them, at once or in its time.
  void Wake(const RequestId& id);
  void Take(const RequestId& id, Reader& reader);
  void TellAll();
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
  uint32_t window_ = 0;  // tokens, as the router said; 0: it wants no credit
  std::vector<RequestId> open_;
  std::vector<Reader> readers_;  // of each of these
  // Asked for twice, and one of the two has ended: the other may still wait or run.
  std::vector<RequestId> twice_;
  std::vector<RequestId> ended_;
  std::vector<RouterToClient> unread_;  // while paused
};

}  // namespace kvern::sim
