// How long a group's engine steps take, learned from its reports: a fixed part and a part per
// prefill token, by least squares over the latest steps. Integers only.
#pragma once

#include <cstdint>

#include "cluster/base/time.h"

namespace kvern::router {

class StepModel {
 public:
  // What was learned longer ago counts as unknown: a model that says no to everything would never
  // be corrected.
  static constexpr Duration kMemory = 30 * kSecond;

  // `steps` >= 1 steps took `step_us` together and computed `prefill_tokens`.
  void Observe(Time now, uint64_t steps, uint64_t step_us, uint64_t prefill_tokens);

  bool known(Time now) const { return weight_ > 0 && now - observed_at_ < kMemory; }
  // Mean of the latest steps, whatever they did; 0 when nothing is known.
  Duration MeanStep(Time now) const;
  // Time to prefill `tokens` in chunks of at most `chunk` > 0; 0 when nothing is known.
  Duration Prefill(Time now, uint64_t tokens, uint64_t chunk) const;

 private:
  struct Line {
    uint64_t fixed_ns = 0;      // of a step
    uint64_t ns_per_token = 0;  // of prefill
  };
  Line Fit() const;

  // Sums over the latest steps, each weighing kOne when new and decaying from then on.
  uint64_t weight_ = 0;
  uint64_t time_ = 0;         // us
  uint64_t tokens_ = 0;       // prefill tokens
  uint64_t time_tokens_ = 0;  // us * tokens
  uint64_t tokens_tokens_ = 0;
  Line line_;  // through them
  Time observed_at_ = 0;
};

}  // namespace kvern::router
