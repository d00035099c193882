// Tells whoever started the router where it listens and when its groups are live.
#pragma once

#include <cstdint>
#include <string>

#include "cluster/base/ready_file.h"
#include "cluster/base/status.h"

namespace kvern {

struct RouterAddresses {
  std::string endpoint;         // for clients
  std::string worker_endpoint;  // for workers
  std::string status;           // of the status server
};

// The launcher's pipe (--ready-fd) gets lines of JSON: the addresses with the process id as soon as
// everything is bound, {"ready":true} when the expected groups are live, {"joining":GROUP,
// "incarnation":N} when the first rank of a start has joined, and {"given_up":GROUP,
// "incarnation":N,"reason":TEXT} whenever a start of a group is over for the router. The ready file
// appears whole, by rename, at the second moment. Either may be absent (-1, empty).
class Announcer {
 public:
  Announcer(int ready_fd, std::string ready_file)
      : ready_fd_(ready_fd), ready_file_(std::move(ready_file)) {}
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;

  // Before anything is bound: whether the ready file could be written.
  absl::Status Check() const { return ready_file_.Check(); }
  absl::Status Bound(const RouterAddresses& addresses);
  // Also prints `ready tcp://...` on stdout.
  absl::Status Ready();
  // These two are not said to a pipe that nobody reads: the router waits for nobody.
  void Joining(const std::string& group, uint64_t incarnation);
  void GivenUp(const std::string& group, uint64_t incarnation, const std::string& reason);

 private:
  void Say(const std::string& line);

  int ready_fd_;
  ReadyFile ready_file_;
  RouterAddresses addresses_;
};

}  // namespace kvern
