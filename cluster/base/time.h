// Time in decisions: integer nanoseconds on one process's monotonic axis, always an argument.
#pragma once

#include <cstdint>
#include <limits>

namespace kvern {

// Nanoseconds since an arbitrary origin. Only differences mean anything, and only inside one
// process.
using Time = int64_t;
using Duration = int64_t;

inline constexpr Duration kMicrosecond = 1'000;
inline constexpr Duration kMillisecond = 1'000'000;
inline constexpr Duration kSecond = 1'000'000'000;

// "Never": no deadline compares later.
inline constexpr Time kTimeMax = std::numeric_limits<Time>::max();

}  // namespace kvern
