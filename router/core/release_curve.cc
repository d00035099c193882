#include "router/core/release_curve.h"

#include <algorithm>
#include <bit>

namespace kvern::router {

void ReleaseCurve::Clear() { *this = ReleaseCurve(); }

size_t ReleaseCurve::BucketOf(Duration delay) {
  auto ms = static_cast<uint64_t>(delay / kMillisecond);
  if (ms < 4) return ms;
  size_t octave = static_cast<size_t>(std::bit_width(ms)) - 1;  // >= 2
  return std::min<size_t>((octave - 1) * 4 + ((ms >> (octave - 2)) & 3), kBuckets - 1);
}

Duration ReleaseCurve::UpperEdge(size_t bucket) {
  if (bucket < 4) return static_cast<Duration>(bucket + 1) * kMillisecond;
  size_t octave = bucket / 4 + 1;
  return static_cast<Duration>((4 + bucket % 4 + 1) << (octave - 2)) * kMillisecond;
}

void ReleaseCurve::Add(Duration delay, Duration whole, uint64_t blocks) {
  blocks_[BucketOf(delay)] += blocks;
  total_ += blocks;
  block_us_ += static_cast<unsigned __int128>(blocks) * static_cast<uint64_t>(delay / kMicrosecond);
  rate_ += blocks * static_cast<uint64_t>(kRateSpan / kMicrosecond) /
           static_cast<uint64_t>(std::max(whole, kMicrosecond) / kMicrosecond);
}

Duration ReleaseCurve::Until(uint64_t blocks) const {
  if (blocks == 0) return 0;
  if (total_ == 0) return kTimeMax;
  // What runs is, in the mean, half way through: all of its blocks turn over in twice the mean
  // rest.
  unsigned __int128 turnover_ns = block_us_ * 2 * kMicrosecond / total_;
  unsigned __int128 by_rest = turnover_ns * blocks / total_;
  // But what began together ends together, and just before that the rests say that nobody waits.
  // Over a whole turn each gives its blocks back once in the time for which it holds them.
  unsigned __int128 by_whole = static_cast<unsigned __int128>(blocks) *
                               static_cast<uint64_t>(kRateSpan) / std::max<uint64_t>(rate_, 1);
  auto at_rate = static_cast<Duration>(std::max(by_rest, by_whole));
  uint64_t freed = 0;
  for (size_t bucket = 0; bucket < kBuckets; ++bucket) {
    freed += blocks_[bucket];
    if (freed >= blocks) return std::min(UpperEdge(bucket), std::max<Duration>(at_rate, 1));
  }
  return at_rate;
}

Duration ReleaseCurve::UntilByTurns(uint64_t blocks) const {
  if (blocks == 0 || total_ == 0) return Until(blocks);
  uint64_t turns = (blocks - 1) / total_;
  auto turn = static_cast<unsigned __int128>(kRateSpan) * total_ / std::max<uint64_t>(rate_, 1);
  constexpr unsigned __int128 kLongest = kTimeMax / 2;
  return Until(blocks - turns * total_) +
         static_cast<Duration>(std::min(std::min(turn, kLongest) * turns, kLongest));
}

}  // namespace kvern::router
