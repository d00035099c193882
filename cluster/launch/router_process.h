// The router as a child: its process, what it says, and the lines of its ready descriptor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/launch/child_output.h"
#include "cluster/launch/child_process.h"
#include "cluster/launch/launch_config.h"

namespace kvern {

// The router's first ready line: {"endpoint","worker_endpoint","status","pid"}.
struct RouterAddresses {
  std::string endpoint;
  std::string worker_endpoint;
  std::string status;
};

// A start of a group of which the router has heard.
struct JoiningStart {
  std::string group;
  uint64_t incarnation = 0;
};

// A start of a group that the router will never again give work.
struct GivenUpStart {
  std::string group;
  uint64_t incarnation = 0;
  std::string reason;
};

class RouterProcess {
 public:
  static absl::StatusOr<RouterProcess> Start(const LaunchConfig& config);

  ChildProcess& process() { return process_; }
  ChildOutput& output() { return output_; }
  const ChildOutput& output() const { return output_; }
  bool output_open = true;

  // -1 once the router has closed it.
  int ready_fd() const { return ready_.get(); }
  // Reads what is there, or a part of much. An error if the router says something else than what is
  // agreed.
  absl::Status ReadReady();

  // Set once the router listens.
  const std::optional<RouterAddresses>& addresses() const { return addresses_; }
  // True once all groups are live.
  bool all_live() const { return all_live_; }
  // Since the last call.
  std::vector<JoiningStart> TakeJoining() { return std::exchange(joining_, {}); }
  std::vector<GivenUpStart> TakeGivenUp() { return std::exchange(given_up_, {}); }

 private:
  RouterProcess(ChildProcess process, Fd ready)
      : process_(std::move(process)), ready_(std::move(ready)) {}
  absl::Status ReadyLine(const std::string& line);

  ChildProcess process_;
  ChildOutput output_;
  Fd ready_;
  std::string partial_;
  std::optional<RouterAddresses> addresses_;
  bool all_live_ = false;
  std::vector<JoiningStart> joining_;
  std::vector<GivenUpStart> given_up_;
};

}  // namespace kvern
