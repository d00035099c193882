// Tells whoever started the launcher that the whole service is ready.
#pragma once

#include <string>

#include "cluster/base/status.h"
#include "cluster/launch/launch_config.h"
#include "cluster/launch/router_process.h"

namespace kvern {

// Prints `ready tcp://…` on stdout and writes {"endpoint","status","pid"} to --ready-fd (then
// closed) or to --ready-file, which appears whole, by rename.
absl::Status AnnounceReady(const LaunchConfig& config, const RouterAddresses& addresses);

// Removes the ready file, if there is one: at start, since it may be of a launcher that was killed,
// and at the end.
void RemoveReadyFile(const LaunchConfig& config);

}  // namespace kvern
