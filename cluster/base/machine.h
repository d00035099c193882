// What this machine has, and a rank's share of it unless its operator says otherwise.
#pragma once

#include <cstdint>

namespace kvern {

// Threads per rank: the cores this process may use ÷ ranks, at least 1. REQUIRES: ranks > 0.
int64_t DefaultThreads(int64_t ranks);

// KV bytes per rank: 25 % of the machine's memory (or this control group's, if less) ÷ ranks.
// REQUIRES: ranks > 0.
uint64_t DefaultKvMemory(int64_t ranks);

}  // namespace kvern
