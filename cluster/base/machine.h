// What this machine has, and a rank's share of it unless its operator says otherwise; how a process
// uses its memory.
#pragma once

#include <cstdint>

#include "cluster/base/time.h"

namespace kvern {

// Threads per rank: the cores this process may use ÷ ranks, at least 1. REQUIRES: ranks > 0.
int64_t DefaultThreads(int64_t ranks);

// KV bytes per rank: 25 % of the machine's memory (or this control group's, if less) ÷ ranks.
// REQUIRES: ranks > 0.
uint64_t DefaultKvMemory(int64_t ranks);

// Bytes that can still be had without another process losing them: MemAvailable of /proc/meminfo,
// or what this control group may still take, if less; the largest number when neither is known.
uint64_t AvailableMemory();

// Bytes of memory that this process has now; the largest number when that is not known.
uint64_t ResidentMemory();

// From now on this process keeps freed memory for its next large objects. Without it each message
// of some hundred kilobytes costs a page fault per page, again and again. What lies free on top of
// a heap is kept up to 64 MiB; for what lies free below something that lasts, see FreedMemory.
void KeepFreedMemory();

// After a flood most of the memory is free, but not to others: a few objects that last lie above
// it. This gives it back when the process has 128 MiB more than what is in use, at most every ten
// seconds: it takes some 50 ms for each GiB, in which other threads may wait, too.
// Thread-compatible.
class FreedMemory {
 public:
  // Call now and then, each second, say, whether much is freed or not.
  void GiveBack(Time now);

 private:
  Time next_ = 0;
};

}  // namespace kvern
