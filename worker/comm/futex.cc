#include "worker/comm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <climits>

namespace kvern {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4,
              "the kernel sees the atomic as a plain 32-bit word");

int Operation(int operation, FutexScope scope) {
  return scope == FutexScope::kThreads ? operation | FUTEX_PRIVATE_FLAG : operation;
}

}  // namespace

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, Duration timeout, FutexScope scope) {
  timespec relative{};
  relative.tv_sec = timeout / kSecond;
  relative.tv_nsec = timeout % kSecond;
  syscall(SYS_futex, &word, Operation(FUTEX_WAIT, scope), expected,
          timeout == kTimeMax ? nullptr : &relative, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word, FutexScope scope) {
  syscall(SYS_futex, &word, Operation(FUTEX_WAKE, scope), INT_MAX, nullptr, nullptr, 0);
}

}  // namespace kvern
