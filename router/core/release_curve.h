// When blocks come free: what runs, by the time of its expected end.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "cluster/base/time.h"

namespace kvern::router {

class ReleaseCurve {
 public:
  void Clear();
  bool empty() const { return total_ == 0; }
  // `blocks` come free after `delay`, of the `whole` time for which they are held.
  void Add(Duration delay, Duration whole, uint64_t blocks);

  // The time until `blocks` have come free, those of later requests included: beyond what runs now,
  // the rate at which it ends goes on. kTimeMax: nothing runs.
  Duration Until(uint64_t blocks) const;
  // The same of few requests, which end one by one and not at a rate: what ends is followed by its
  // like at once, so that beyond what runs now a turn begins like the one before.
  Duration UntilByTurns(uint64_t blocks) const;

 private:
  // Four buckets per doubling, from a millisecond up.
  static constexpr size_t kBuckets = 4 * 24;
  static constexpr Duration kRateSpan = 1000 * kSecond;
  static size_t BucketOf(Duration delay);
  static Duration UpperEdge(size_t bucket);

  std::array<uint64_t, kBuckets> blocks_{};
  uint64_t total_ = 0;
  unsigned __int128 block_us_ = 0;  // sum of blocks * delay
  uint64_t rate_ = 0;               // blocks per kRateSpan that come free in the long run
};

}  // namespace kvern::router
