// kvern-sim: the router and the schedulers under virtual time.
#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/base/clock.h"
#include "router/tenants_file.h"
#include "tools/sim/command_line.h"
#include "tools/sim/trial.h"

namespace kvern::sim {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "kvern-sim: %s\n", std::string(status.message()).c_str());
  return code;
}

// Runs the plan and prints what it came to.
int RunAndShow(const RunConfig& config, const RunPlan& plan, double capacity,
               const std::string& command_line) {
  Time began = MonotonicNow();
  Results results = RunHere(plan);
  results.wall_s = static_cast<double>(MonotonicNow() - began) / 1e9;
  results.capacity_rps = capacity;
  if (config.check_repeat) {
    uint64_t again = RunHere(plan).event_hash;
    results.repeat_hash = again;
    if (again != results.event_hash) {
      results.violations.push_back(absl::StrFormat(
          "D1: the same run again has the event hash %016x, not %016x", again, results.event_hash));
    }
  }
  if (config.json) {
    std::printf("%s\n", ToJson(results, plan.options.seed, command_line).c_str());
  } else {
    std::printf("%s", ToText(results).c_str());
  }
  return results.violations.empty() ? 0 : 1;
}

void Show(const ChildOutcome& outcome) {
  std::fprintf(stderr, "%s", outcome.errors.c_str());
  std::printf("%s", outcome.output.c_str());
}

// The run failed: shows instead the smallest that still fails in the same way, and how to repeat
// it.
void ShowSmallest(const RunConfig& config, const RunPlan& plan, double capacity,
                  const std::vector<std::string>& arguments, const ChildOutcome& failed) {
  std::optional<SmallestRun> smallest = FindSmallest(config, plan);
  if (!smallest) return Show(failed);  // of two runs that differ, there is none
  std::string line = LineWith(arguments, smallest->config);
  std::fprintf(stderr, "kvern-sim: %s failed; the smallest run in which it does:\n  kvern-sim %s\n",
               smallest->check.c_str(), line.c_str());
  Show(RunInChild([&] { return RunAndShow(smallest->config, smallest->plan, capacity, line); }));
}

int Main(int argc, char** argv) {
  RunConfig config;
  Options options("kvern-sim", "kvern-sim (--load X | --rate R) [options]");
  AddOptions(options, config);
  options.ParseOrExit(argc, argv);
  if (config.load <= 0 && config.rate <= 0) {
    return Fail(InvalidArgument("needs --load or --rate"), 2);
  }
  if (config.load > 0 && config.rate > 0) {
    return Fail(InvalidArgument("--load and --rate, not both"), 2);
  }
  if (!config.tenants_file.empty()) {
    absl::StatusOr<std::vector<TenantConfig>> tenants = ReadTenantsFile(config.tenants_file);
    if (!tenants.ok()) return Fail(InvalidArgument("--tenants: ", tenants.status().message()), 1);
    config.tenants = *std::move(tenants);
  }
  absl::StatusOr<RunPlan> checked = MakePlan(config, 1, nullptr);
  if (!checked.ok()) return Fail(checked.status(), 2);
  std::shared_ptr<const std::vector<TraceRow>> trace;
  if (std::optional<std::string> path = TracePath(config)) {
    absl::StatusOr<std::vector<TraceRow>> rows = ReadTrace(*path);
    if (!rows.ok()) return Fail(InvalidArgument("--workload: ", rows.status().message()), 1);
    trace = std::make_shared<const std::vector<TraceRow>>(*std::move(rows));
  }
  std::vector<std::string> arguments(argv + 1, argv + argc);
  std::string line = absl::StrJoin(arguments, " ");
  // First, so that whatever happens then can be repeated.
  std::fprintf(stderr, "kvern-sim: seed %s, options: %s\n", absl::StrCat(config.seed).c_str(),
               line.c_str());
  double capacity = 0;
  double rate = config.rate;
  if (config.load > 0) {
    absl::StatusOr<double> found = FindCapacity(config, trace);
    if (!found.ok()) return Fail(found.status(), 1);
    capacity = *found;
    rate = capacity * config.load;
    if (rate <= 0) return Fail(InvalidArgument("--load: the capacity of this workload is 0"), 1);
  }
  absl::StatusOr<RunPlan> plan = MakePlan(config, rate, trace);
  if (!plan.ok()) return Fail(plan.status(), 2);
  // In a child, so that a failed check in a core leaves someone who can say when it fails.
  ChildOutcome outcome = RunInChild([&] { return RunAndShow(config, *plan, capacity, line); });
  if (outcome.code == 0) {
    Show(outcome);
  } else {
    ShowSmallest(config, *plan, capacity, arguments, outcome);
  }
  if (std::ferror(stdout) != 0 || std::fflush(stdout) != 0) {
    return Fail(ErrnoStatus("writing the results", errno), 1);
  }
  return outcome.code;
}

}  // namespace
}  // namespace kvern::sim

int main(int argc, char** argv) { return kvern::sim::Main(argc, argv); }
