// Exit codes with a meaning between our programs; 0 is success and 1 any other failure.
#pragma once

namespace kvern {

// The command line or the environment asks for what cannot be.
inline constexpr int kUsageExit = 2;
// A worker's connection to the router broke. No failure of its own when the router was to go.
inline constexpr int kRouterGoneExit = 3;

}  // namespace kvern
