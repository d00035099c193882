// Log lines that strangers can cause: one (or a burst) per kind and second, with a count of what
// was held back, so that whoever sends rubbish does not write the log.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/base/log.h"
#include "cluster/base/time.h"

namespace kvern {

struct LimitedLine {
  LogLevel level = LogLevel::kInfo;
  std::string event;
  // Of the latest line of this kind; "count" is added when several are told in one.
  std::vector<std::pair<std::string, std::string>> fields;
};

// Belongs to one thread. The kinds are the caller's constants, so their number is bounded.
class LogLimiter {
 public:
  // The line to write now; nothing when `burst` of this kind were written within the last second.
  std::optional<LimitedLine> Add(Time now, const std::string& kind, LimitedLine line,
                                 uint32_t burst = 1);

  // What was held back for a second: call about as often.
  std::vector<LimitedLine> Due(Time now);

 private:
  struct Kind {
    Time since = 0;        // when the second began
    uint32_t written = 0;  // in it
    uint64_t held = 0;
    LimitedLine latest;
  };
  std::map<std::string, Kind> kinds_;
};

}  // namespace kvern
