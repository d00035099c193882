// kvern-launch's command line, and the command lines it makes of it for the router and the ranks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cluster/base/options.h"
#include "cluster/base/status.h"
#include "cluster/base/time.h"

namespace kvern {

// An option that is passed on as it was given: its meaning and its default are the child's.
struct PassedOption {
  std::string name;
  std::string value;
};

struct LaunchConfig {
  std::string bin_directory;  // where kvern-router and kvern-worker are
  std::string model;
  int64_t tp = 1;
  int64_t replicas = 1;
  std::string listen = "tcp://127.0.0.1:5570";
  std::string status = "127.0.0.1:5580";
  int64_t ready_fd = -1;   // -1: none
  std::string ready_file;  // empty: none
  // From a group's start to its first rank that joins, which it does when its model is loaded; 0:
  // as long as that takes.
  Duration join_timeout = 0;
  bool batch_invariant = false;  // the CPU always is
  bool on_gpus = true;           // if there are any: each rank has one of its own
  bool json_log = false;
  std::vector<PassedOption> router_options;
  std::vector<PassedOption> worker_options;
};

// Reads the command line; --help, --version and usage errors end the process.
LaunchConfig ParseLaunchConfig(int argc, char** argv);

// One start of one rank.
struct RankPlace {
  std::string group;
  uint64_t group_incarnation = 0;
  int64_t rank = 0;
  int64_t group_index = 0;
};

// "group-0" and so on.
std::string GroupName(int64_t index);

std::vector<std::string> RouterArguments(const LaunchConfig& config);
std::vector<std::string> WorkerArguments(const LaunchConfig& config, const RankPlace& place,
                                         const std::string& worker_endpoint);

}  // namespace kvern
