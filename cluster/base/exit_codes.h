// Exit codes, the same of every program: 0 success, 2 usage, 1 any other failure.
//
// Usage (2): the command line, or its variables, cannot be, whatever the model: an option is
// unknown, missing, malformed, not allowed, given with one that excludes it, or asks for what this
// machine has not. A failure (1): what an option names cannot be read or had (a file, an address, a
// service), the model refuses it (too few KV heads, too short), or anything goes wrong later.
#pragma once

namespace kvern {

inline constexpr int kUsageExit = 2;
// A worker's connection to the router broke. No failure of its own when the router was to go.
inline constexpr int kRouterGoneExit = 3;

}  // namespace kvern
