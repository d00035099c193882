// Notices that a ZeroMQ connection broke. The socket itself does not say so: it connects again, and
// what was in flight is gone.
#pragma once

#include <memory>

#include "cluster/base/status.h"
#include "cluster/net/socket.h"

namespace kvern {

// Belongs to the thread of the socket it watches.
class ConnectionWatch {
 public:
  // Starts watching. Both arguments outlive the watch.
  static absl::StatusOr<std::unique_ptr<ConnectionWatch>> Create(NetContext& context,
                                                                 const Socket& socket);
  ~ConnectionWatch();
  ConnectionWatch(const ConnectionWatch&) = delete;
  ConnectionWatch& operator=(const ConnectionWatch&) = delete;

  // True once an established connection has broken. Never blocks.
  bool Broken();

  // The socket that becomes readable when there is something to look at.
  void* handle() const { return events_; }

 private:
  ConnectionWatch(void* watched, void* events) : watched_(watched), events_(events) {}

  void* watched_;
  void* events_;
  bool broken_ = false;
};

}  // namespace kvern
