// What each path of the status server answers. No sockets here.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "router/io/metrics.h"

namespace kvern {

// Where the pages get their facts. Called on the status server's thread; may wait a moment.
class StatusSource {
 public:
  virtual ~StatusSource() = default;
  // Unavailable: the router's loop does not answer.
  virtual absl::StatusOr<std::shared_ptr<const StatusSnapshot>> Snapshot() = 0;
  // NotFound: no such open request. Unavailable as above.
  virtual absl::StatusOr<RequestStatus> Find(const RequestId& id) = 0;
};

struct StatusPage {
  int code = 200;  // of HTTP
  std::string content_type = "application/json";
  std::string body;
};

// The answer to GET `path`: /live, /ready, /health/progress, /metrics, /v1/capacity and
// /v1/requests/ID; 404 for any other, 400 for what cannot be an ID.
StatusPage RespondTo(std::string_view path, StatusSource& source);

}  // namespace kvern
