// Texts that wait for a thread. The highest band is next, in it the tenant whose texts took least
// of the threads' time for its weight, of that tenant the oldest.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <set>
#include <utility>

#include "cluster/base/id_map.h"
#include "router/core/router.h"

namespace kvern {

// As router/core/wait_queue.h shares the groups: a virtual counter for each tenant, here of bytes,
// and whoever begins to wait has had no less than the one that was served last.
class TextJobs {
 public:
  bool empty() const { return where_.empty(); }
  void Push(Tokenize job);
  // REQUIRES: not empty().
  Tokenize Pop();
  // False: it is not here. O(log tenants), as are the others.
  bool Remove(const RequestId& id);

 private:
  struct Line {
    uint64_t service = 0;  // bytes over the weight, scaled
    std::list<Tokenize> jobs;
  };
  struct Band {
    std::map<uint32_t, Line> lines;                  // by tenant; kept, as what it had counts
    std::set<std::pair<uint64_t, uint32_t>> waiting;  // service, tenant
    uint64_t level = 0;                              // service of the last that was served
  };
  struct Place {
    uint8_t band = 0;
    uint32_t tenant = 0;
    std::list<Tokenize>::iterator job;
  };

  std::map<uint8_t, Band, std::greater<>> bands_;
  IdMap<RequestId, Place> where_;
};

}  // namespace kvern
