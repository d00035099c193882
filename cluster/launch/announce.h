// Tells whoever started the launcher that the whole service is ready.
#pragma once

#include "cluster/base/ready_file.h"
#include "cluster/base/status.h"
#include "cluster/launch/launch_config.h"
#include "cluster/launch/router_process.h"

namespace kvern {

// Prints `ready tcp://…` on stdout and writes {"endpoint","status","pid"} to --ready-fd (then
// closed) or to the ready file.
absl::Status AnnounceReady(const LaunchConfig& config, const RouterAddresses& addresses,
                           ReadyFile& ready_file);

}  // namespace kvern
