// What this machine has, and a rank's share of it unless its operator says otherwise; how a process
// uses its memory.
#pragma once

#include <cstdint>

namespace kvern {

// Threads per rank: the cores this process may use ÷ ranks, at least 1. REQUIRES: ranks > 0.
int64_t DefaultThreads(int64_t ranks);

// KV bytes per rank: 25 % of the machine's memory (or this control group's, if less) ÷ ranks.
// REQUIRES: ranks > 0.
uint64_t DefaultKvMemory(int64_t ranks);

// Bytes that can still be had without another process losing them: MemAvailable of /proc/meminfo,
// or what this control group may still take, if less; the largest number when neither is known.
uint64_t AvailableMemory();

// From now on this process keeps up to 64 MiB of freed memory for its next large objects. Without
// it each message of some hundred kilobytes costs a page fault per page, again and again.
void KeepFreedMemory();

}  // namespace kvern
