// SIGTERM as a wish: the rank's group is to be drained.
#pragma once

#include "cluster/base/status.h"

namespace kvern {

// Of the whole process. A signal handler and not a signalfd: no thread has to read it, so it needs
// no thread of its own beside a rank that waits for its peers, and the second SIGTERM ends the
// process whatever its threads do.
class LeaveSignal {
 public:
  // From now on the first SIGTERM is noted; the next one ends the process, as the system does. Call
  // once. Fails only where the system has no descriptor left.
  static absl::Status Install();

  // Any thread. False before Install.
  static bool told();
  // Readable once told; for polls. REQUIRES: Install succeeded.
  static int fd();
};

}  // namespace kvern
