// How long a group's engine steps take, learned from its reports: a fixed part and a part per
// prefill token, by least squares over the latest steps. Integers only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "cluster/base/time.h"

namespace kvern::router {

// What a model has come to.
struct StepSpeed {
  Time known_until = 0;  // what was learned longer ago counts as unknown
  // What is said of prefill is not reason enough from then on to let an idle group stand idle.
  Time trusted_until = 0;
  Duration mean = 0;          // of a step
  uint64_t fixed_ns = 0;      // of a step
  uint32_t ns_per_token = 0;  // of prefill; UINT32_MAX: that or more
  uint32_t rows = 0;          // tokens that a step decodes, in the mean, in 1/kRowParts

  static constexpr uint64_t kRowParts = 16;
  bool known(Time now) const { return now < known_until; }
  // Mean of the latest steps, whatever they did; 0 when nothing is known.
  Duration MeanStep(Time now) const { return known(now) ? mean : 0; }
  // Mean of the latest steps without their prefill.
  Duration MeanDecode(Time now) const;
  // Time to prefill `tokens` in chunks of at most `chunk` > 0; 0 when nothing is known.
  Duration Prefill(Time now, uint64_t tokens, uint64_t chunk) const {
    if (!known(now) || tokens == 0) return 0;
    uint64_t steps = tokens <= chunk ? 1 : (tokens + chunk - 1) / chunk;
    return static_cast<Duration>(steps * fixed_ns + tokens * uint64_t{ns_per_token});
  }
  friend bool operator==(const StepSpeed&, const StepSpeed&) = default;
};

class StepModel {
 public:
  // A model that says no to everything would never be corrected, so what it learned is forgotten.
  static constexpr Duration kMemory = 30 * kSecond;
  // One look at a prefill tells little: it may have been the very first, or the machine was busy.
  // Each further one is trusted for so much longer where there will be no other, as nothing runs.
  static constexpr Duration kTrustPerLook = kSecond;

  // `steps` >= 1 steps took `step_us` together, computed `prefill_tokens` and decoded `rows`.
  void Observe(Time now, uint64_t steps, uint64_t step_us, uint64_t prefill_tokens, uint64_t rows);

  const StepSpeed& speed() const { return speed_; }
  bool known(Time now) const { return speed_.known(now); }
  Duration MeanStep(Time now) const { return speed_.MeanStep(now); }
  Duration Prefill(Time now, uint64_t tokens, uint64_t chunk) const {
    return speed_.Prefill(now, tokens, chunk);
  }

 private:
  // Sets the line of speed_.
  void Fit();
  // Whatever disturbs a step makes it longer. So one that is much shorter than was learned of a few
  // shows that those were disturbed; one that is much longer may be disturbed itself.
  enum class Odd : uint8_t { kNo, kShort, kLong };
  Odd OddOf(uint64_t us, uint64_t tokens) const;

  // Sums over the latest steps, each weighing kOne when new and decaying from then on.
  uint64_t weight_ = 0;
  uint64_t time_ = 0;         // us
  uint64_t tokens_ = 0;       // prefill tokens
  uint64_t time_tokens_ = 0;  // us * tokens
  uint64_t tokens_tokens_ = 0;
  uint64_t rows_ = 0;
  Duration trust_ = 0;  // by the steps with prefill since the first, or the last odd one
  StepSpeed speed_;
};

// How a step's time grows with the tokens that it decodes, of all groups together: a line, by least
// squares over the latest reports. By it groups are compared that ran different batches. Integers
// only.
class DecodeCost {
 public:
  // One report: steps that decode `rows` (in 1/StepSpeed::kRowParts) take `step`.
  void Observe(uint64_t rows, Duration step);
  // 0: nothing was observed; else 1 ns or more.
  Duration Step(uint64_t rows) const {
    if (weight_ == 0) return 0;
    return static_cast<Duration>(std::max<uint64_t>(1, fixed_ns_ + ns_per_part_ * rows));
  }
  // How long the steps of a group of this speed took, compared with what others take for as much;
  // kLikeOthers when nothing is known.
  static constexpr uint64_t kLikeOthers = uint64_t{1} << 16;
  uint64_t Slowness(const StepSpeed& speed, Time now) const;

 private:
  uint64_t weight_ = 0;
  uint64_t time_ = 0;  // us
  uint64_t rows_ = 0;
  uint64_t time_rows_ = 0;
  uint64_t rows_rows_ = 0;
  uint64_t fixed_ns_ = 0;
  uint64_t ns_per_part_ = 0;  // of a row
};

}  // namespace kvern::router
