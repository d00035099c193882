// The environment variables of Kvern, all in one list: options of kvern-launch, kvern-router and
// kvern-worker, and what tests and scripts set. Any other KVERN_ name is a slip of somebody's pen.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvern {

struct UnknownVariable {
  std::string name;
  std::string nearest;  // the known name that it looks like; empty: none is near
};

// Of `names`, those that begin with KVERN_ and are none of Kvern's, in the order given. What
// Kubernetes sets for a service that is called kvern is left out.
std::vector<UnknownVariable> UnknownVariables(const std::vector<std::string>& names);

// Logs a warning for each of this process, and takes it out of its environment, so that its
// children do not say it again. Before other threads start.
void WarnOfUnknownVariables();

}  // namespace kvern
