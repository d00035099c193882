// Requests of every shape: text, chat and ids, stop strings, stop ids, logprobs, deadlines, several
// choices; in a Poisson stream with a burst now and then.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/rng.h"
#include "tests/sim/swarm_options.h"
#include "tools/sim/workload.h"

namespace kvern::sim {

class SwarmWorkload : public Workload {
 public:
  explicit SwarmWorkload(const SwarmOptions& options);

  const std::vector<std::string>& tenants() const override { return tenants_; }
  const std::vector<uint32_t>& clients() const override { return clients_; }
  std::optional<Ask> Next() override;

 private:
  void DrawSized(uint32_t blocks, GenerateRequest& request);
  void DrawIds(size_t count, GenerateRequest& request);
  void DrawInput(uint32_t tenant, GenerateRequest& request);
  void DrawStops(GenerateRequest& request);

  SwarmOptions options_;
  Rng rng_;
  std::vector<std::string> tenants_ = {""};
  std::vector<int32_t> ceilings_ = {0};  // [tenants] of their priorities
  std::vector<uint32_t> clients_;
  Time now_ = 0;
  uint32_t burst_ = 0;  // requests to come at the same time
};

}  // namespace kvern::sim
