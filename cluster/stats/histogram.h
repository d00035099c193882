// Counts of observations by size, in fixed buckets: what a Prometheus histogram shows.
#pragma once

#include <cstdint>
#include <vector>

namespace kvern {

// A value. Not thread-safe; copies are cheap (one number for each bucket).
class Histogram {
 public:
  // `bounds`: the inclusive upper ends of the buckets, ascending and at least one; one more bucket
  // takes what is above the last.
  explicit Histogram(std::vector<double> bounds);

  // For times from a millisecond to a few minutes: steps of about 2.
  static Histogram OfSeconds();

  // NaN is ignored: it belongs into no bucket.
  void Observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  // [bounds + 1], each bucket by itself.
  const std::vector<uint64_t>& counts() const { return counts_; }
  uint64_t count() const { return count_; }
  double sum() const { return sum_; }

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace kvern
