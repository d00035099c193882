#include "tools/sim/trial.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "tools/sim/shrink.h"

namespace kvern::sim {
namespace {

int WaitFor(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) KVERN_CHECK(errno == EINTR);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

std::string ReadAll(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = std::fread(buffer, 1, sizeof(buffer), file)) > 0;) text.append(buffer, n);
  std::fclose(file);
  return text;
}

}  // namespace

Results RunHere(const RunPlan& plan) {
  SizedWorkload workload(plan.workload, plan.options.model, plan.options.seed);
  Simulation simulation(plan.options, workload, nullptr);
  if (plan.tamper) simulation.set_tamper(plan.tamper);
  simulation.Run();
  return Collect(simulation, workload.tenants());
}

absl::StatusOr<double> FindCapacity(const RunConfig& config,
                                    std::shared_ptr<const std::vector<TraceRow>> trace) {
  KVERN_ASSIGN_OR_RETURN(RunPlan plan, MakeCapacityPlan(config, std::move(trace)));
  Results results = RunHere(plan);
  if (!results.violations.empty()) {
    return Internal("while the capacity was measured: ", results.violations[0]);
  }
  return results.completed_rps * static_cast<double>(config.groups);
}

ChildOutcome RunInChild(const std::function<int()>& body) {
  std::FILE* output = std::tmpfile();
  std::FILE* errors = std::tmpfile();
  KVERN_CHECK(output != nullptr && errors != nullptr) << "tmpfile";
  std::fflush(nullptr);
  pid_t child = fork();
  KVERN_CHECK(child >= 0) << "fork";
  if (child == 0) {
    dup2(fileno(output), STDOUT_FILENO);
    dup2(fileno(errors), STDERR_FILENO);
    int code = body();
    std::fflush(nullptr);
    std::_Exit(code);
  }
  int code = WaitFor(child);
  return {code, ReadAll(output), ReadAll(errors)};
}

std::string FailingCheckInChild(const RunPlan& plan) {
  ChildOutcome outcome = RunInChild([&] {
    Results results = RunHere(plan);
    if (results.violations.empty()) return 0;
    std::fprintf(stderr, "%s\n", CheckName(results.violations[0]).c_str());
    return 1;
  });
  if (outcome.code == 0) return "";
  // A failed KVERN_CHECK says where.
  std::string line = outcome.errors.substr(0, outcome.errors.find('\n'));
  return line.substr(0, line.find(": "));
}

std::optional<SmallestRun> FindSmallest(const RunConfig& config, const RunPlan& failing) {
  SmallestRun smallest{FailingCheckInChild(failing), config, failing};
  if (smallest.check.empty()) return std::nullopt;
  // As the command line would make it: other things may follow from which faults there are.
  auto become = [&](const SimOptions& options) {
    smallest.config.faults = NamesOf(options.faults);
    smallest.config.max_requests =
        static_cast<int64_t>(std::min(options.max_requests, uint64_t{INT64_MAX}));
    // Nothing in it is less valid than it was.
    smallest.plan = *MakePlan(smallest.config, failing.workload.rate, failing.workload.trace);
    smallest.plan.tamper = failing.tamper;
  };
  double seconds = static_cast<double>(failing.options.duration) / 1e9;
  uint64_t asked = static_cast<uint64_t>(failing.workload.rate * seconds) + 1;
  uint64_t requests = std::min(failing.options.max_requests, asked);
  Shrunk shrunk = Shrink(failing.options, smallest.check, requests, [&](const SimOptions& options) {
    become(options);
    return FailingCheckInChild(smallest.plan);
  });
  become(shrunk.options);
  return smallest;
}

std::string LineWith(const std::vector<std::string>& arguments, const RunConfig& config) {
  std::string line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    bool apart = argument == "--faults" || argument == "--max-requests";
    if (apart) ++i;  // its value
    bool said_anew =
        apart || argument.starts_with("--faults=") || argument.starts_with("--max-requests=");
    if (!said_anew) absl::StrAppend(&line, argument, " ");
  }
  absl::StrAppend(&line, "--faults ", config.faults);
  if (config.max_requests < INT64_MAX) {
    absl::StrAppend(&line, " --max-requests ", config.max_requests);
  }
  return line;
}

}  // namespace kvern::sim
