// Linux futexes on atomics, in private memory or shared between processes.
#pragma once

#include <atomic>
#include <cstdint>

#include "cluster/base/time.h"

namespace kvern {

enum class FutexScope : uint8_t { kThreads, kProcesses };

// Sleeps while `word` holds `expected`, for at most `timeout` (kTimeMax: without end). Returns
// early for no reason at times, as the system call does: callers check their condition in a loop.
void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, Duration timeout, FutexScope scope);

// Wakes everyone who sleeps on `word`.
void FutexWakeAll(std::atomic<uint32_t>& word, FutexScope scope);

}  // namespace kvern
