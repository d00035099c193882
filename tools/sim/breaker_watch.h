// A group that fails requests before their first token gets nothing for a while (R8): counted from
// outside, as router/core/breaker.h promises, and where it is not seen who was first, in favour of
// the router.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "router/core/router.h"
#include "tools/sim/checker.h"

namespace kvern::sim {

// Whether a refusal counts against the group: what its client did wrong does not.
bool IsFault(ErrorCode code);

class BreakerWatch {
 public:
  // The checker outlives the watch.
  BreakerWatch(size_t groups, Checker& checker, Checker::Report violation);

  // ---- In one turn of the router, in this order.
  // It hears, or refuses to, of the first token of a request of that group, answered or not.
  void FirstToken(uint32_t group, const RequestId& id);
  // It hears that the group refused a request.
  void Refused(Time now, uint32_t group, const Nack& nack);
  // What it said to clients: who ends with its group, and who otherwise.
  void Hear(Time now, const RouterEffects& effects);
  void Started(Time now, uint32_t group, const RequestId& id);

 private:
  struct Group {
    uint32_t failures = 0;  // in a row
    Time closed_until = 0;
    std::set<RequestId> without_token;
  };
  void Failed(Time now, Group& group);

  Checker& checker_;
  Checker::Report violation_;
  std::vector<Group> groups_;
};

}  // namespace kvern::sim
