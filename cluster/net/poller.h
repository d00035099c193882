// Waiting for several sockets and file descriptors at once, and waking a thread that waits.
#pragma once

#include <zmq.h>

#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "cluster/net/socket.h"

namespace kvern {

// An eventfd: any thread notifies, one thread waits for it in its Poller.
class WakeUp {
 public:
  static absl::StatusOr<WakeUp> Create();
  WakeUp(WakeUp&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  WakeUp& operator=(WakeUp&&) = delete;
  ~WakeUp();

  int fd() const { return fd_; }
  // Thread-safe and async-signal-safe; never blocks.
  void Notify() const;
  // Takes back all notifications so far.
  void Clear() const;

 private:
  explicit WakeUp(int fd) : fd_(fd) {}
  int fd_;
};

// Not thread-safe. The set is small and fixed after construction.
class Poller {
 public:
  // Each returns the index for Ready. The socket or descriptor outlives the poller.
  size_t Add(const Socket& socket);
  size_t AddFd(int fd);

  // Waits until one is readable, or `timeout` has passed (rounded up to milliseconds; kTimeMax: no
  // limit; 0: just looks). A signal ends the wait early.
  absl::Status Wait(Duration timeout);
  bool Ready(size_t index) const { return items_[index].revents != 0; }

 private:
  std::vector<zmq_pollitem_t> items_;
};

}  // namespace kvern
