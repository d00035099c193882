#include "tools/sim/trial.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cluster/base/check.h"
#include "tools/sim/shrink.h"

namespace kvern::sim {
namespace {

int WaitFor(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0) KVERN_CHECK(errno == EINTR);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

std::string ReadAll(int fd) {
  std::string text;
  char buffer[4096];
  for (ssize_t n = 0; (n = read(fd, buffer, sizeof(buffer))) != 0;) {
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    if (n < 0) KVERN_CHECK(errno == EINTR);
  }
  return text;
}

}  // namespace

Results RunHere(const RunPlan& plan) {
  SizedWorkload workload(plan.workload, plan.options.model, plan.options.seed);
  Simulation simulation(plan.options, workload, nullptr);
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

int RunInChild(const std::function<int()>& body) {
  std::fflush(nullptr);
  pid_t child = fork();
  KVERN_CHECK(child >= 0) << "fork";
  if (child > 0) return WaitFor(child);
  int code = body();
  std::fflush(nullptr);
  std::_Exit(code);
}

std::string FailingCheckInChild(const RunPlan& plan) {
  int ends[2];
  KVERN_CHECK(pipe(ends) == 0) << "pipe";
  std::fflush(nullptr);
  pid_t child = fork();
  KVERN_CHECK(child >= 0) << "fork";
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);  // a failed KVERN_CHECK says where
    Results results = RunHere(plan);
    if (results.violations.empty()) std::_Exit(0);
    std::fprintf(stderr, "%s\n", CheckName(results.violations[0]).c_str());
    std::fflush(stderr);
    std::_Exit(1);
  }
  close(ends[1]);
  std::string said = ReadAll(ends[0]);
  close(ends[0]);
  if (WaitFor(child) == 0) return "";
  std::string line = said.substr(0, said.find('\n'));
  return line.substr(0, line.find(": "));
}

}  // namespace kvern::sim
