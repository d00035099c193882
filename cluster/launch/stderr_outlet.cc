#include "cluster/launch/stderr_outlet.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "cluster/base/clock.h"
#include "cluster/base/status.h"

namespace kvern {

void StderrOutlet::Line(std::string_view prefix, std::string_view line) {
  if (queue_.size() + prefix.size() + line.size() + 1 > kMaxQueued) {
    ++dropped_;
    return;
  }
  if (dropped_ > 0) {
    absl::StrAppend(&queue_, "kvern-launch: stderr was blocked, ", dropped_, " lines dropped\n");
    dropped_ = 0;
  }
  absl::StrAppend(&queue_, ToAbsl(prefix), ToAbsl(line), "\n");
}

void StderrOutlet::Pump() {
  while (!queue_.empty()) {
    pollfd ready{fd_, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) return;
    // A pipe that is ready takes PIPE_BUF bytes without blocking.
    ssize_t wrote = write(fd_, queue_.data(), std::min<size_t>(queue_.size(), PIPE_BUF));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      queue_.clear();  // Nobody listens any more.
      return;
    }
    queue_.erase(0, static_cast<size_t>(wrote));
  }
}

void StderrOutlet::Flush(Duration limit) {
  Time deadline = MonotonicNow() + limit;
  Pump();
  while (!queue_.empty() && MonotonicNow() < deadline) {
    pollfd ready{fd_, POLLOUT, 0};
    poll(&ready, 1, 50);
    Pump();
  }
}

}  // namespace kvern
