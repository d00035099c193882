// Who asks for what, and when.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/time.h"
#include "schemas/messages.h"

namespace kvern::sim {

struct Ask {
  Time at = 0;
  uint32_t client = 0;          // below the number of clients
  GenerateRequest request;      // without its id
  Duration cancel_after = -1;   // < 0: never
  Duration read_delay = 0;      // its reader takes nothing for so long after the first token
  Duration read_gap = 0;        // and then a token each time; 0: all that is there
  bool bad = false;             // must be refused as invalid
  bool bad_ids = false;         // likewise, but the router cannot see it
  bool repeated = false;        // is sent twice
  bool cancel_foreign = false;  // also cancels a request of another client
};

class Workload {
 public:
  virtual ~Workload() = default;
  virtual const std::vector<std::string>& tenants() const = 0;
  // [clients] the tenant of each.
  virtual const std::vector<uint32_t>& clients() const = 0;
  // The next request, in order of time; absent: there is none left.
  virtual std::optional<Ask> Next() = 0;
};

}  // namespace kvern::sim
