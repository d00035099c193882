// One run of kvern-sim as the command line names it, and how it becomes a simulation.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "tools/sim/options.h"
#include "tools/sim/sized_workload.h"
#include "tools/sim/trace.h"

namespace kvern::sim {

struct RunConfig {
  int64_t seed = 1;
  int64_t groups = 1;
  int64_t tp = 1;
  int64_t kv_tokens = 120'000;
  std::string policy = "kvern";
  std::string workload = "poisson";
  double load = 0;  // a multiple of the capacity; 0: not said
  double rate = 0;  // requests per second; 0: not said
  double duration = 180;
  std::string faults = "none";
  std::vector<Declared> declared = {{4096, 700}, {1024, 300}};
  std::string tenants_file;
  std::vector<TenantConfig> tenants;  // of the tenants file
  std::vector<uint32_t> shares;       // of the requests; empty: each tenant has the same
  std::string only_tenant;            // the others ask for nothing; "": all do
  Slo slo;
  int64_t batch_tokens = 1024;
  int64_t queue_entries = 1024;
  int64_t watermark_percent = 3;
  int64_t quantile_percent = 65;
  int64_t max_running = 0;  // 0: no limit
  int64_t max_requests = INT64_MAX;
  bool check_repeat = false;
  bool json = false;
};

// "4096:0.7,1024:0.3": counts from 1 to 1,000,000 and shares that add up to 1.
absl::StatusOr<std::vector<Declared>> ParseDeclared(std::string_view text);
// "50,1,1": 1 to 1000 whole numbers from 0 to 1,000,000, not all of them 0.
absl::StatusOr<std::vector<uint32_t>> ParseShares(std::string_view text);
// A decimal number in [min, max].
absl::StatusOr<double> ParseNumber(std::string_view text, double min, double max);

// What the simulation and its workload are made of. `trace`: read when the workload names one.
struct RunPlan {
  SimOptions options;
  SizedOptions workload;
  // Of tests: changes what the router says in each turn, before anybody sees it.
  std::function<void(Time, RouterEffects&)> tamper;
};
// InvalidArgument for a workload or a policy that does not exist.
absl::StatusOr<RunPlan> MakePlan(const RunConfig& config, double rate,
                                 std::shared_ptr<const std::vector<TraceRow>> trace);
// The run that finds the capacity of one group: see docs/promises.md.
absl::StatusOr<RunPlan> MakeCapacityPlan(const RunConfig& config,
                                         std::shared_ptr<const std::vector<TraceRow>> trace);

// The path in "trace:PATH"; absent for other workloads.
std::optional<std::string> TracePath(const RunConfig& config);

}  // namespace kvern::sim
