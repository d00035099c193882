// How long a group's engine steps take, learned from its reports: a fixed part and a part per
// prefill token, by least squares over the latest steps. Integers only.
#pragma once

#include <cstdint>

#include "cluster/base/time.h"

namespace kvern::router {

// What a model has come to.
struct StepSpeed {
  Time known_until = 0;       // what was learned longer ago counts as unknown
  Duration mean = 0;          // of a step
  uint64_t fixed_ns = 0;      // of a step
  uint64_t ns_per_token = 0;  // of prefill

  bool known(Time now) const { return now < known_until; }
  // Mean of the latest steps, whatever they did; 0 when nothing is known.
  Duration MeanStep(Time now) const { return known(now) ? mean : 0; }
  // Time to prefill `tokens` in chunks of at most `chunk` > 0; 0 when nothing is known.
  Duration Prefill(Time now, uint64_t tokens, uint64_t chunk) const;
  friend bool operator==(const StepSpeed&, const StepSpeed&) = default;
};

class StepModel {
 public:
  // A model that says no to everything would never be corrected, so what it learned is forgotten.
  static constexpr Duration kMemory = 30 * kSecond;

  // `steps` >= 1 steps took `step_us` together and computed `prefill_tokens`.
  void Observe(Time now, uint64_t steps, uint64_t step_us, uint64_t prefill_tokens);

  const StepSpeed& speed() const { return speed_; }
  bool known(Time now) const { return speed_.known(now); }
  Duration MeanStep(Time now) const { return speed_.MeanStep(now); }
  Duration Prefill(Time now, uint64_t tokens, uint64_t chunk) const {
    return speed_.Prefill(now, tokens, chunk);
  }

 private:
  // Sets the line of speed_.
  void Fit();

  // Sums over the latest steps, each weighing kOne when new and decaying from then on.
  uint64_t weight_ = 0;
  uint64_t time_ = 0;         // us
  uint64_t tokens_ = 0;       // prefill tokens
  uint64_t time_tokens_ = 0;  // us * tokens
  uint64_t tokens_tokens_ = 0;
  StepSpeed speed_;
};

}  // namespace kvern::router
