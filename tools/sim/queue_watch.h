// What the router says and sends in each turn, compared with the order of the queue and with who is
// still there to be told. Sees a turn when it is taken, not when it arrives. The letters are those
// of README.md.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "router/core/router.h"
#include "tools/sim/checker.h"
#include "tools/sim/fairness.h"

namespace kvern::sim {

class QueueWatch {
 public:
  // The checker outlives the watch. `weights`: [tenants].
  QueueWatch(std::vector<uint32_t> weights, Checker& checker, Checker::Report violation);

  const FairnessMeter& fairness() const { return meter_; }

  // A group begins with so many blocks.
  void GroupHas(uint32_t group, uint64_t blocks);

  // ---- In one turn of the router, in this order.
  // It hears of so many more tokens of what runs.
  void Heard(Record& record, uint64_t tokens);
  // Some of which came with a report that it refused, at its end or before.
  void HeardRefused() { meter_.Forget(); }
  // What was said in one turn.
  void Hear(const RouterEffects& effects);
  // In it the router has noticed that a client is gone, and tells nobody the end of its requests.
  void ClientGone(uint32_t client);
  // After all of these, and Checker::Dispatched for what the turn sends.
  void TurnOver(const RouterEffects& effects);

 private:
  struct Waiting {
    RequestId id;
    uint64_t turn = 0;  // that lined it up
  };
  // One tenant's requests of one band, in order. What has left the middle of it is still there.
  using Line = std::deque<Waiting>;
  // A line after the turn.
  struct Front {
    int32_t band = 0;
    uint32_t tenant = 0;
    bool unseen = false;     // whether its head may start: it has a quota of blocks, or is too
                             // large for some group
    bool stays = false;      // the head, if there is one, was the head before the turn
    const RequestId* head = nullptr;
    uint64_t largest = 0;  // blocks that a head of it in this turn may need
  };

  void Told(const RouterToClient& message);
  void Answered(Record& record);
  void Accepted(const RequestId& id);
  std::vector<Front> TakeFronts();
  Front TakeFront(int32_t band, uint32_t tenant, Line& line);
  bool Gone(const RequestId& id) const;
  // Whether one that needs `blocks` may have passed a blocked head of that band or one above.
  static bool MayPass(uint64_t blocks, int32_t band, const std::vector<Front>& fronts);
  void CheckBand(const RequestId& id, const std::vector<Front>& fronts);
  // `started`: where.
  void CheckPassed(const std::vector<uint64_t>& started, const std::vector<Front>& fronts);
  void Violate(const char* name, const RequestId& id, const std::string& what);

  Checker& checker_;
  Checker::Report violation_;
  FairnessMeter meter_;
  std::map<int32_t, std::map<uint32_t, Line>, std::greater<>> lines_;  // [band][tenant]
  // Lines that may be longer than is seen, by band and tenant.
  std::set<std::pair<int32_t, uint32_t>> unsure_;
  // Tenants, by band, whose head was too large for some group.
  std::set<std::pair<int32_t, uint32_t>> too_large_;
  std::map<uint32_t, uint64_t> group_blocks_;
  uint64_t fewest_blocks_ = UINT64_MAX;  // that a group ever had
  uint64_t turn_ = 0;
};

}  // namespace kvern::sim
