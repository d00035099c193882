// The HTTP server of the status pages: its own thread, loopback only, every limit set.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "router/io/status_pages.h"

namespace kvern {

class StatusServer {
 public:
  // Listens on `address` ("127.0.0.1:5580", port 0: any free one) and serves until destroyed.
  // `source` outlives it. failed_precondition: not a loopback address; invalid_argument: no
  // address; unavailable: the port is taken.
  static absl::StatusOr<std::unique_ptr<StatusServer>> Start(const std::string& address,
                                                             StatusSource* source);
  virtual ~StatusServer() = default;

  // With the real port.
  virtual std::string address() const = 0;
};

// Whether StatusServer::Start takes the address, as long as its port is free.
absl::Status CheckStatusAddress(std::string_view address);

}  // namespace kvern
