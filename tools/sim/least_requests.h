// The policy of most routers in use, to compare with: each request goes at once to the group that
// has the fewest, and waits there. No ledger, no queue, no deadlines, no tenants.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/base/id_map.h"
#include "tools/sim/front_end.h"

namespace kvern::sim {

// Token ids only; groups and connections that do not fail (kvern-sim refuses faults with it).
class LeastRequests : public FrontEnd {
 public:
  explicit LeastRequests(const RouterConfig& config) : config_(config) {}

  void Step(Time now, RouterEvent&& event, RouterEffects& effects) override;
  void Flush(Time now, RouterEffects& effects) override;
  Time NextDeadline() const override { return kTimeMax; }
  bool Drained() const override;
  RouterStatus Status(Time now) override;
  void PrefetchReport(PeerId /*rank*/, size_t /*stage*/) override {}
  // It has no queue and keeps no ledger.
  RouterBooks Books(Time /*now*/, PeerId /*rank*/) override { return {}; }
  uint64_t ReservedBlocks(PeerId /*rank*/) override { return 0; }
  absl::StatusOr<RequestStatus> Find(const RequestId& id) override;
  void Audit() const override;

 private:
  struct Group {
    std::string name;
    Incarnation incarnation = 0;
    std::vector<PeerId> peers;  // [world]
    uint32_t joined = 0;
    uint64_t blocks = 0;
    std::vector<uint8_t> comm_id;
    bool live = false;
    bool left = false;
    uint64_t requests = 0;
    uint64_t sequence = 0;
    Commands pending;
    StepReport report;  // without runs
  };
  struct Open {
    PeerId client = 0;
    size_t group = 0;
    uint32_t prompt_tokens = 0;
    uint32_t choices_left = 0;
    uint32_t tokens = 0;
  };

  void OnClient(PeerId client, ClientMessage& message, RouterEffects& effects);
  void OnGenerate(PeerId client, GenerateRequest& message, RouterEffects& effects);
  bool RefuseTooLarge(PeerId client, const GenerateRequest& message, RouterEffects& effects);
  void OnCancel(PeerId client, const RequestId& id, RouterEffects& effects);
  void OnJoin(PeerId peer, const Join& join, RouterEffects& effects);
  void OnReport(PeerId peer, StepReport& report, RouterEffects& effects);
  void OnRun(TokenRun& run, RouterEffects& effects);
  void Dispatch(PeerId client, GenerateRequest& message, RouterEffects& effects);
  Group* GroupOf(PeerId peer);

  RouterConfig config_;
  std::vector<Group> groups_;
  IdMap<RequestId, Open> open_;
  std::vector<std::pair<PeerId, GenerateRequest>> early_;  // until a group is live
  bool draining_ = false;
};

}  // namespace kvern::sim
