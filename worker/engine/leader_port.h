// What a group's leader needs of the outside: the router's commands in, its reports out.
#pragma once

#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "schemas/worker_messages.h"

namespace kvern {

// Used by the leader's thread. Errors are final: the router is gone or speaks nonsense.
class LeaderPort {
 public:
  virtual ~LeaderPort() = default;

  // Appends all commands that are there, oldest first; waits up to `timeout` for the first one.
  virtual absl::Status Receive(Duration timeout, std::vector<Commands>& commands) = 0;

  // Never blocks.
  virtual absl::Status Send(const StepReport& report) = 0;
  virtual absl::Status Send(const Leave& leave) = 0;
};

}  // namespace kvern
