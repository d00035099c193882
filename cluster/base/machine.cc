#include "cluster/base/machine.h"

#include <malloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

namespace kvern {
namespace {

constexpr uint64_t kUnknown = std::numeric_limits<uint64_t>::max();

// The number after `name` in a file of lines "name number ...".
uint64_t NumberIn(const char* path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name)) return std::stoull(line.substr(name.size()));
  }
  return kUnknown;
}

}  // namespace

int64_t DefaultThreads(int64_t ranks) {
  cpu_set_t allowed;
  int cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return std::max<int64_t>(1, cores / ranks);
}

uint64_t DefaultKvMemory(int64_t ranks) {
  uint64_t memory =
      static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  // "max" when there is no limit: then the read fails and the machine's memory counts.
  uint64_t limit = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit) memory = std::min(memory, limit);
  return memory / 4 / static_cast<uint64_t>(ranks);
}

uint64_t AvailableMemory() {
  uint64_t available = NumberIn("/proc/meminfo", "MemAvailable:");
  if (available != kUnknown) available *= 1024;
  uint64_t limit = 0;
  uint64_t used = 0;
  if (std::ifstream("/sys/fs/cgroup/memory.max") >> limit &&
      std::ifstream("/sys/fs/cgroup/memory.current") >> used) {
    // Files that nobody reads or writes are let go first.
    uint64_t files = NumberIn("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (files != kUnknown) used -= std::min(used, files);
    available = std::min(available, limit - std::min(limit, used));
  }
  return available;
}

uint64_t ResidentMemory() {
  uint64_t size = 0;
  uint64_t resident = 0;  // pages, both
  if (!(std::ifstream("/proc/self/statm") >> size >> resident)) return kUnknown;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void FreedMemory::GiveBack(Time now) {
  constexpr uint64_t kKept = 128u << 20;
  constexpr Duration kEvery = 10 * kSecond;
  if (now < next_) return;
  const uint64_t bytes = ResidentMemory();
  if (bytes == kUnknown || bytes < kKept) return;
  const struct mallinfo2 heaps = mallinfo2();
  if (bytes < heaps.uordblks + heaps.hblkhd + kKept) return;
  malloc_trim(0);
  next_ = now + kEvery;
}

void KeepFreedMemory() {
  constexpr int kKeptBytes = 64 << 20;
  constexpr int kLargestFromHeap = 32 << 20;  // the most that glibc allows
  // A hint: another allocator (a sanitizer's, a preloaded one) may not know it, and needs it less.
  mallopt(M_MMAP_THRESHOLD, kLargestFromHeap);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
}

}  // namespace kvern
