// The DRAM read bandwidth of this moment, to print beside a measurement: on shared machines it
// changes within seconds, so only ratios mean something.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

namespace kvern {

// Sums the words of [begin, end) in eight chains; the result only keeps the reads alive.
inline uint64_t ReadAll(const uint64_t* begin, const uint64_t* end) {
  typedef uint64_t Words __attribute__((vector_size(64)));
  Words sums[8] = {};
  for (const uint64_t* p = begin; p + 64 <= end; p += 64) {
    for (size_t i = 0; i < 8; ++i) {
      Words words;
      std::memcpy(&words, p + 8 * i, sizeof(words));
      sums[i] += words;
    }
  }
  uint64_t total = 0;
  for (const Words& sum : sums) {
    for (size_t i = 0; i < 8; ++i) total += sum[i];
  }
  return total;
}

// Reads memory of its own that no cache holds, with a fixed number of threads. It lies in huge
// pages like the weights: on ordinary ones a quarter less is read per second.
class BandwidthProbe {
 public:
  explicit BandwidthProbe(size_t bytes = size_t{256} << 20)
      : words_(static_cast<uint64_t*>(std::aligned_alloc(kHugePage, bytes))), count_(bytes / 8) {
    madvise(words_, bytes, MADV_HUGEPAGE);
    std::fill_n(words_, count_, 1);
  }
  ~BandwidthProbe() { std::free(words_); }
  BandwidthProbe(const BandwidthProbe&) = delete;
  BandwidthProbe& operator=(const BandwidthProbe&) = delete;

  // Bytes per second, the best of `repeats` passes.
  double Measure(int threads, int repeats = 3) {
    double best = 0;
    for (int i = 0; i < repeats; ++i) {
      const auto start = std::chrono::steady_clock::now();
      Pass(threads);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      best = std::max(best, static_cast<double>(count_ * 8) / seconds.count());
    }
    return best;
  }

 private:
  void Pass(int threads) {
    std::vector<std::thread> workers;
    const auto count = static_cast<size_t>(threads);
    std::vector<uint64_t> sums(count);
    for (size_t i = 0; i < count; ++i) {
      workers.emplace_back([this, i, count, &sums] {
        sums[i] = ReadAll(words_ + count_ * i / count, words_ + count_ * (i + 1) / count);
      });
    }
    for (std::thread& worker : workers) worker.join();
    for (uint64_t sum : sums) total_ = total_ + sum;
  }

  static constexpr size_t kHugePage = size_t{2} << 20;

  uint64_t* words_;
  size_t count_;
  volatile uint64_t total_ = 0;
};

}  // namespace kvern
