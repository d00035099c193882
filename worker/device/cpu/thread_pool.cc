#include "worker/device/cpu/thread_pool.h"

#include <algorithm>

#include "cluster/base/check.h"
#include "cluster/base/threads.h"

namespace kvern {
namespace {

constexpr uint32_t kStop = 0xFFFFFFFFu;

// Long enough to bridge the short gaps between the operations of a step (some 20 microseconds),
// short enough to leave the core to others between steps. With more threads than cores, spinning
// would only keep the one that is waited for from running.
int SpinsFor(int threads) {
  const unsigned cores = std::thread::hardware_concurrency();
  return static_cast<unsigned>(threads) <= cores ? 1000 : 0;
}

void Pause() { __builtin_ia32_pause(); }

}  // namespace

ThreadPool::ThreadPool(int threads) : spins_(SpinsFor(threads)) {
  KVERN_CHECK_GE(threads, 1);
  workers_.reserve(static_cast<size_t>(threads) - 1);
  for (int i = 1; i < threads; ++i) {
    absl::StatusOr<std::thread> worker = StartThread([this, i] { Work(i); });
    if (!worker.ok()) {
      status_ = ResourceExhausted("threads: ", threads, ", only ", i,
                                  " can be had: ", worker.status().message());
      return;
    }
    workers_.push_back(*std::move(worker));
  }
}

ThreadPool::~ThreadPool() {
  round_.store(kStop, std::memory_order_release);
  round_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

uint32_t ThreadPool::Await(const std::atomic<uint32_t>& value, uint32_t old) const {
  for (int i = 0; i < spins_; ++i) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    Pause();
  }
  while (true) {
    value.wait(old, std::memory_order_acquire);
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
  }
}

void ThreadPool::Work(int thread) {
  uint32_t seen = 0;
  while (true) {
    seen = Await(round_, seen);
    if (seen == kStop) return;
    (*body_)(thread);
    if (working_.fetch_sub(1, std::memory_order_acq_rel) == 1) working_.notify_one();
  }
}

void ThreadPool::RunOnAll(const std::function<void(int)>& body) {
  if (workers_.empty()) {
    body(0);
    return;
  }
  body_ = &body;
  working_.store(static_cast<uint32_t>(workers_.size()), std::memory_order_relaxed);
  uint32_t next = round_.load(std::memory_order_relaxed) + 1;
  if (next == kStop) next = 0;
  round_.store(next, std::memory_order_release);
  round_.notify_all();
  body(0);
  uint32_t left = working_.load(std::memory_order_acquire);
  while (left != 0) left = Await(working_, left);
}

void ThreadPool::Ranges(int64_t count, int64_t unit,
                        const std::function<void(int, int64_t, int64_t)>& body) {
  const int64_t units = (count + unit - 1) / unit;
  const int64_t parts = std::min<int64_t>(units, threads());
  if (parts <= 1) {
    if (count > 0) body(0, 0, count);
    return;
  }
  RunOnAll([&](int thread) {
    if (thread >= parts) return;
    const int64_t begin = units * thread / parts * unit;
    const int64_t end = std::min(count, units * (thread + 1) / parts * unit);
    body(thread, begin, end);
  });
}

void ThreadPool::Items(int64_t count, const std::function<void(int, int64_t)>& body) {
  if (count <= 1 || workers_.empty()) {
    for (int64_t i = 0; i < count; ++i) body(0, i);
    return;
  }
  std::atomic<int64_t> next{0};
  RunOnAll([&](int thread) {
    for (int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < count;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(thread, i);
    }
  });
}

}  // namespace kvern
