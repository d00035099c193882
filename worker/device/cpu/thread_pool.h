// Threads that share one rank's work. Work is cut by index, so what is computed never depends on
// who computes it.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "cluster/base/status.h"

namespace kvern {

// All calls from one thread, the owner's, which takes part in the work as thread 0. Several pools
// may live in one process. Idle workers spin a little, then sleep.
class ThreadPool {
 public:
  // REQUIRES: threads >= 1. Starts threads - 1 workers, or as many as the system gives: see
  // status().
  explicit ThreadPool(int threads);
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool();

  // OK, or why there are fewer threads than asked for.
  const absl::Status& status() const { return status_; }

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(0) .. body(threads() - 1), each on its own thread; returns when all are done.
  void RunOnAll(const std::function<void(int)>& body);

  // body(thread, begin, end) over [0, count) cut into at most threads() ranges whose begins are
  // multiples of `unit`. Ranges are never empty.
  void Ranges(int64_t count, int64_t unit, const std::function<void(int, int64_t, int64_t)>& body);

  // body(thread, i) for each i in [0, count), handed out one at a time; for items of uneven cost.
  void Items(int64_t count, const std::function<void(int, int64_t)>& body);

 private:
  void Work(int thread);
  // Waits until `value` differs from `old`; returns what it is then.
  uint32_t Await(const std::atomic<uint32_t>& value, uint32_t old) const;

  const int spins_;
  const std::function<void(int)>* body_ = nullptr;
  alignas(64) std::atomic<uint32_t> round_{0};    // Changes with each RunOnAll.
  alignas(64) std::atomic<uint32_t> working_{0};  // Workers that have not finished the round.
  std::vector<std::thread> workers_;
  absl::Status status_;
};

}  // namespace kvern
