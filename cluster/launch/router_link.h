// The launcher's line to the router's worker port: it only ever says which group is down.
#pragma once

#include <memory>
#include <string>

#include "cluster/base/status.h"
#include "cluster/net/socket.h"
#include "schemas/worker_messages.h"

namespace kvern {

class RouterLink {
 public:
  // `incarnation` is the launcher's own.
  static absl::StatusOr<std::unique_ptr<RouterLink>> Connect(const std::string& worker_endpoint,
                                                             Incarnation incarnation);

  // Never blocks. Delivered once the connection stands, in order with later ones.
  absl::Status SendGroupDown(const GroupDown& down);

 private:
  RouterLink(std::unique_ptr<NetContext> context, DealerSocket socket, Incarnation incarnation)
      : context_(std::move(context)), socket_(std::move(socket)), incarnation_(incarnation) {}

  std::unique_ptr<NetContext> context_;  // outlives the socket
  DealerSocket socket_;
  Incarnation incarnation_;
};

}  // namespace kvern
