// Lines for the launcher's own stderr, written only when that does not block: a stopped terminal or
// a full pipe must not stop the watch over the children.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "cluster/base/time.h"

namespace kvern {

class StderrOutlet {
 public:
  // Writes to `fd`, which stays the caller's.
  explicit StderrOutlet(int fd) : fd_(fd) {}

  // Queues `prefix` + `line` + newline. Beyond kMaxQueued bytes, lines are dropped and their number
  // is told once there is room.
  void Line(std::string_view prefix, std::string_view line);

  // True if the poll loop should wait for POLLOUT and then call Pump.
  bool pending() const { return !queue_.empty(); }
  int fd() const { return fd_; }

  // Writes what can be written at once.
  void Pump();
  // Pumps until all is written or `limit` has passed.
  void Flush(Duration limit);

 private:
  static constexpr size_t kMaxQueued = 1u << 20;

  int fd_;
  std::string queue_;
  uint64_t dropped_ = 0;
};

}  // namespace kvern
