// One connection to a router: a DEALER and the watch that tells when it broke. A broken link is
// thrown away with all that it had not sent, so nothing of an old connection reaches a new one.
#pragma once

#include <deque>
#include <memory>
#include <string>

#include "cluster/base/status.h"
#include "cluster/net/connection_watch.h"
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
  bool Broken() { return watch_->Broken(); }

  // For zmq_poll.
  void* socket() const { return socket_.handle(); }
  void* watch() const { return watch_->handle(); }

 private:
  ClientLink(DealerSocket socket, std::unique_ptr<ConnectionWatch> watch)
      : socket_(std::move(socket)), watch_(std::move(watch)) {}

  DealerSocket socket_;
  std::unique_ptr<ConnectionWatch> watch_;
  std::deque<std::string> outbox_;
};

}  // namespace kvern
