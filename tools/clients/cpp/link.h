// One connection to a router: a DEALER and the watch that tells when it broke. A broken link is
// thrown away with all that it had not sent, so nothing of an old connection reaches a new one.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "cluster/base/status.h"
#include "cluster/net/socket.h"

namespace kvern {

// Belongs to one thread.
class ClientLink {
 public:
  static absl::StatusOr<std::unique_ptr<ClientLink>> Open(NetContext& context,
                                                          const std::string& endpoint);
  ~ClientLink();
  ClientLink(const ClientLink&) = delete;
  ClientLink& operator=(const ClientLink&) = delete;

  // Sends now or, when the queue is full, with a later Flush; in order.
  absl::Status Send(std::string body);
  absl::Status Flush();
  bool wants_to_send() const { return !outbox_.empty(); }

  // Never blocks; false: nothing waits.
  absl::StatusOr<bool> Receive(Frame* frame);

  // True once the connection has broken. Messages that came before may still wait.
  bool Broken();

  // For zmq_poll.
  void* socket() const { return socket_.handle(); }
  void* watch() const { return watch_; }

 private:
  ClientLink(DealerSocket socket, void* watch) : socket_(std::move(socket)), watch_(watch) {}

  DealerSocket socket_;
  void* watch_;  // PAIR that gets an event when the connection breaks
  std::deque<std::string> outbox_;
  bool broken_ = false;
};

}  // namespace kvern
