// What a run came to: counted over its window, printed as text or JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tools/sim/simulation.h"

namespace kvern::sim {

struct Percentiles {
  double p50 = 0;
  double p90 = 0;
  double p99 = 0;
};

// Over the groups, each with its mean over the time that it was live.
struct Spread {
  double least = 0;
  double mean = 0;
  double most = 0;
};

struct TenantResults {
  double offered_rps = 0;
  double goodput_rps = 0;
  uint64_t completed = 0;
  uint64_t refused = 0;
  uint64_t expired = 0;
  uint64_t tokens = 0;  // prompt and output of what completed
  double ttft_ms_p99 = 0;
};

struct Results {
  double offered_rps = 0;
  double capacity_rps = 0;  // 0: not asked for
  double goodput_rps = 0;
  double completed_rps = 0;
  double completed_tokens_ps = 0;  // prompt and output: shows when short requests are preferred
  uint64_t completed = 0;
  std::map<std::string, uint64_t> refused;  // by error code
  uint64_t expired = 0;
  Percentiles ttft_ms;
  Percentiles tpot_ms;
  uint64_t preemptions = 0;
  uint64_t preempted_requests = 0;
  uint32_t preemptions_max = 0;  // of one request
  uint64_t recomputed_tokens = 0;
  uint64_t fairness_gap_tokens = 0;
  uint64_t fairness_bound_tokens = 0;  // of that gap
  double kv_used_mean = 0;             // shares of the blocks
  double kv_reserved_mean = 0;
  size_t groups = 0;      // that were live at some time
  Spread group_kv_used;   // shares of a group's blocks
  Spread group_running;   // requests
  Slo slo;                // what goodput means
  Duration duration = 0;  // of the load
  std::vector<KvSample> kv_samples;
  std::map<std::string, TenantResults> per_tenant;
  FaultCounts faults;
  std::vector<std::string> violations;
  uint64_t event_hash = 0;
  std::optional<uint64_t> repeat_hash;  // of the same run again
  uint64_t events = 0;
  double wall_s = 0;
};

// Requests count where they end: those that end within [warm_up, duration).
Results Collect(const Simulation& simulation, const std::vector<std::string>& tenants);

// `options`: the run's command line.
std::string ToJson(const Results& results, uint64_t seed, const std::string& options);
std::string ToText(const Results& results);

}  // namespace kvern::sim
