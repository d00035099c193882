// What the router says and sends in each turn, compared with the order of the queue and with who is
// still there to be told. Sees a turn when it is taken, not when it arrives. The letters are those
// of README.md.
#pragma once

#include <deque>
#include <string>

#include "router/core/router.h"
#include "tools/sim/checker.h"

namespace kvern::sim {

class QueueWatch {
 public:
  // The checker outlives the watch.
  QueueWatch(Checker& checker, Checker::Report violation);

  // What was said in one turn.
  void Hear(const RouterEffects& effects);
  // In it the router has noticed that a client is gone, and tells nobody the end of its requests.
  void ClientGone(uint32_t client);
  // After all of these, and Checker::Dispatched for what the turn sends.
  void TurnOver(const RouterEffects& effects);

 private:
  void Told(const RouterToClient& message);
  void Accepted(const RequestId& id);
  void CheckPassed(size_t started);
  void Violate(const char* name, const RequestId& id, const std::string& what);

  Checker& checker_;
  Checker::Report violation_;
  // While all have one tenant and no priority: accepted and not started, in order.
  bool one_line_ = true;
  std::deque<RequestId> line_;
  RequestId head_;  // of it, after the turn before
};

}  // namespace kvern::sim
