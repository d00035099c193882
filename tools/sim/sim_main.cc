// kvern-sim: the router and the schedulers under virtual time.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/base/clock.h"
#include "cluster/base/options.h"
#include "tools/sim/results.h"
#include "tools/sim/run_config.h"

namespace kvern::sim {
namespace {

constexpr double kMaxLoad = 1000;
constexpr double kMaxRate = 1'000'000;

void AddOptions(Options& options, RunConfig& config, bool& json) {
  auto number = [&](const char* name, const char* value, const char* help, double* target,
                    double min, double max) {
    options.Custom(name, value, help, [=](std::string_view text) -> absl::Status {
      KVERN_ASSIGN_OR_RETURN(*target, ParseNumber(text, min, max));
      return absl::OkStatus();
    });
  };
  options.Count("seed", "N", "everything follows from it", &config.seed, 0, INT64_MAX);
  options.Count("groups", "N", "groups of ranks", &config.groups, 1, 4096);
  options.Count("tp", "N", "ranks of a group, as one GPU of N times the speed", &config.tp, 1, 64);
  options.Count("kv-tokens", "N", "KV memory of a group", &config.kv_tokens, 16, 1 << 30);
  options.Choice("policy", {"kvern", "reserve-max", "optimistic", "fifo"}, "who is admitted",
                 &config.policy);
  options.String("workload", "NAME", "poisson, bursts, flash or trace:PATH", &config.workload);
  number("load", "X", "offered load, as a multiple of the capacity found first", &config.load,
         0.001, kMaxLoad);
  number("rate", "R", "or: offered requests per second", &config.rate, 0.001, kMaxRate);
  number("duration", "SECONDS", "simulated, measured from 30 s on (default 180)", &config.duration,
         1, 1'000'000);
  options.Custom("max-tokens", "N:SHARE,...", "what clients declare (default 4096:0.7,1024:0.3)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(config.declared, ParseDeclared(text));
                   return absl::OkStatus();
                 });
  options.Custom("shares", "N,N,...", "tenants' shares of the requests (default one tenant)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(config.shares, ParseShares(text));
                   return absl::OkStatus();
                 });
  options.String("faults", "LIST", "none, all, or names separated by commas", &config.faults);
  options.Time("slo-ttft", "a good request's first token (default 2s)", &config.slo.ttft);
  options.Time("slo-tpot", "and each further one (default 60ms)", &config.slo.tpot);
  options.Count("batch-tokens", "N", "of one step", &config.batch_tokens, 1, 65'536);
  options.Count("queue-entries", "N", "requests that may wait", &config.queue_entries, 1, 1 << 24);
  options.Count("watermark", "PERCENT", "of the blocks, kept free", &config.watermark_percent, 0,
                99);
  options.Count("quantile", "PERCENT", "of output lengths that kvern counts on",
                &config.quantile_percent, 0, 100);
  options.Flag("json", "results as JSON", &json);
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "kvern-sim: %s\n", std::string(status.message()).c_str());
  return code;
}

// Rates are of one group; groups that do not share anything have their sum.
absl::StatusOr<double> FindCapacity(const RunConfig& config,
                                    std::shared_ptr<const std::vector<TraceRow>> trace) {
  KVERN_ASSIGN_OR_RETURN(RunPlan plan, MakeCapacityPlan(config, std::move(trace)));
  SizedWorkload workload(plan.workload, plan.options.model, plan.options.seed);
  Simulation simulation(plan.options, workload, nullptr);
  simulation.Run();
  Results results = Collect(simulation, workload.tenants());
  if (!results.violations.empty()) {
    return Internal("while the capacity was measured: ", results.violations[0]);
  }
  return results.completed_rps * static_cast<double>(config.groups);
}

int Main(int argc, char** argv) {
  RunConfig config;
  bool json = false;
  Options options("kvern-sim", "kvern-sim --load X [options]");
  AddOptions(options, config, json);
  options.ParseOrExit(argc, argv);
  if ((config.load > 0) == (config.rate > 0)) {
    return Fail(InvalidArgument("needs either --load or --rate"), 2);
  }
  std::shared_ptr<const std::vector<TraceRow>> trace;
  if (std::string path = TracePath(config); !path.empty()) {
    absl::StatusOr<std::vector<TraceRow>> rows = ReadTrace(path);
    if (!rows.ok()) return Fail(rows.status(), 1);
    trace = std::make_shared<const std::vector<TraceRow>>(*std::move(rows));
  }
  std::string line;
  for (int i = 1; i < argc; ++i) absl::StrAppend(&line, i > 1 ? " " : "", argv[i]);
  std::fprintf(stderr, "kvern-sim: seed %lld, options: %s\n", static_cast<long long>(config.seed),
               line.c_str());
  Time began = MonotonicNow();
  double capacity = 0;
  double rate = config.rate;
  if (config.load > 0) {
    absl::StatusOr<double> found = FindCapacity(config, trace);
    if (!found.ok()) return Fail(found.status(), 1);
    capacity = *found;
    rate = capacity * config.load;
  }
  absl::StatusOr<RunPlan> plan = MakePlan(config, rate, trace);
  if (!plan.ok()) return Fail(plan.status(), 2);
  SizedWorkload workload(plan->workload, plan->options.model, plan->options.seed);
  Simulation simulation(plan->options, workload, nullptr);
  simulation.Run();
  Results results = Collect(simulation, workload.tenants());
  results.capacity_rps = capacity;
  results.wall_s = static_cast<double>(MonotonicNow() - began) / 1e9;
  std::map<std::string, std::string> shown = {{"command_line", line}};
  if (json) {
    std::printf("%s\n", ToJson(results, plan->options.seed, shown).c_str());
  } else {
    std::printf("%s", ToText(results).c_str());
  }
  return results.violations.empty() ? 0 : 1;
}

}  // namespace
}  // namespace kvern::sim

int main(int argc, char** argv) { return kvern::sim::Main(argc, argv); }
