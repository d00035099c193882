#include "router/core/step_model.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern::router {
namespace {

constexpr uint64_t kOne = 16;  // weight of a new step: keeps the decay of small sums exact enough
constexpr uint64_t kDecay = 128;       // steps, or reports, that count
constexpr uint64_t kOneReport = 2048;  // of DecodeCost, whose batches may all be alike

// Prefill tokens by which steps must differ, or that they must have on average, to tell what one
// costs. A few more or less are lost in what else steps do: decodes, and the machine's noise.
constexpr __int128 kTelling = 16;

uint64_t PartsOf(uint64_t rows, uint64_t steps) {
  // Sums of times and rows stay within 64 bits: 2^26 us * 2^18 * kOneReport * kDecay = 2^62.
  constexpr uint64_t kMaxParts = uint64_t{1} << 18;
  return std::min(std::min(rows, kMaxParts) * StepSpeed::kRowParts / steps, kMaxParts);
}

// Keep every sum within 64 bits: (2^20 tokens)^2 * kOne * kDecay = 2^51.
constexpr uint64_t kMaxTokens = uint64_t{1} << 20;
constexpr uint64_t kMaxStepUs = 60'000'000;

// REQUIRES: ns >= 0.
uint32_t Rate(__int128 ns) { return static_cast<uint32_t>(std::min<__int128>(ns, UINT32_MAX)); }

}  // namespace

void StepModel::Observe(Time now, uint64_t steps, uint64_t step_us, uint64_t prefill_tokens,
                        uint64_t rows) {
  KVERN_CHECK(steps > 0);
  uint64_t us = std::min(step_us / steps, kMaxStepUs);
  uint64_t tokens = std::min(prefill_tokens / steps, kMaxTokens);
  const Odd odd = OddOf(us, tokens);
  if (odd == Odd::kShort) *this = StepModel();
  if (tokens > 0) {
    bool first = tokens_ == 0 || odd == Odd::kLong;
    trust_ = first ? 0 : std::min(trust_ + kTrustPerLook, kMemory);
    speed_.trusted_until = now + trust_;
  }
  for (uint64_t* sum : {&weight_, &time_, &tokens_, &time_tokens_, &tokens_tokens_, &rows_}) {
    *sum -= *sum / kDecay;
  }
  weight_ += kOne;
  time_ += kOne * us;
  tokens_ += kOne * tokens;
  time_tokens_ += kOne * us * tokens;
  tokens_tokens_ += kOne * tokens * tokens;
  rows_ += kOne * PartsOf(rows, steps);
  speed_.known_until = now + kMemory;
  speed_.mean = static_cast<Duration>(time_ * 1000 / weight_);
  speed_.rows = static_cast<uint32_t>(rows_ / weight_);
  Fit();
}

StepModel::Odd StepModel::OddOf(uint64_t us, uint64_t tokens) const {
  constexpr uint64_t kTimes = 4;
  constexpr Duration kFewLooks = 4 * kTrustPerLook;
  if (tokens < static_cast<uint64_t>(kTelling)) return Odd::kNo;
  uint64_t expected = speed_.fixed_ns + tokens * speed_.ns_per_token;
  // Of many looks some were of what is dear by itself: the end of a long prompt, beside many rows.
  if (us * 1000 * kTimes < expected && trust_ < kFewLooks) return Odd::kShort;
  return us * 1000 > expected * kTimes ? Odd::kLong : Odd::kNo;
}

void StepModel::Fit() {
  __int128 w = weight_, t = time_, p = tokens_, tp = time_tokens_, pp = tokens_tokens_;
  __int128 variance = w * pp - p * p;
  __int128 covariance = w * tp - p * t;
  speed_.fixed_ns = 0;
  speed_.ns_per_token = 0;
  bool differ = variance > kTelling * kTelling * w * w;
  if (differ && covariance > 0) {
    speed_.ns_per_token = Rate(covariance * 1000 / variance);
  } else if (!differ && p >= kTelling * w) {
    speed_.ns_per_token = Rate(t * 1000 / p);
    return;  // all steps alike: the rate is all that is known
  }
  __int128 fixed = (t * 1000 - p * static_cast<__int128>(speed_.ns_per_token)) / w;
  speed_.fixed_ns = fixed > 0 ? static_cast<uint64_t>(fixed) : 0;
}

Duration StepSpeed::MeanDecode(Time now) const {
  // Where the rate is all that is known of a step, it is one of prefill alone.
  return known(now) && fixed_ns > 0 ? static_cast<Duration>(fixed_ns) : MeanStep(now);
}

void DecodeCost::Observe(uint64_t rows, Duration step) {
  const uint64_t us = std::min(static_cast<uint64_t>(step) / 1000, kMaxStepUs);
  for (uint64_t* sum : {&weight_, &time_, &rows_, &time_rows_, &rows_rows_}) *sum -= *sum / kDecay;
  weight_ += kOneReport;
  time_ += kOneReport * us;
  rows_ += kOneReport * rows;
  time_rows_ += kOneReport * us * rows;
  rows_rows_ += kOneReport * rows * rows;
  const __int128 w = weight_, t = time_, r = rows_, tr = time_rows_, rr = rows_rows_;
  const __int128 variance = w * rr - r * r;
  const __int128 covariance = w * tr - r * t;
  fixed_ns_ = ns_per_part_ = 0;
  // Batches that differ by less than half a row tell nothing.
  constexpr auto kHalfRow = static_cast<__int128>(StepSpeed::kRowParts / 2);
  if (variance > kHalfRow * kHalfRow * w * w && covariance > 0) {
    ns_per_part_ = static_cast<uint64_t>(covariance * 1000 / variance);
  }
  const __int128 fixed = (t * 1000 - r * static_cast<__int128>(ns_per_part_)) / w;
  if (fixed > 0) {
    fixed_ns_ = static_cast<uint64_t>(fixed);
  } else if (r > 0) {  // a line through the origin and the mean
    ns_per_part_ = static_cast<uint64_t>(t * 1000 / r);
  }
}

uint64_t DecodeCost::Slowness(const StepSpeed& speed, Time now) const {
  constexpr auto kMost = static_cast<__int128>(kLikeOthers) << 16;
  const __int128 measured = speed.MeanDecode(now);
  const Duration others = Step(speed.rows);
  if (measured == 0 || others == 0) return kLikeOthers;
  return static_cast<uint64_t>(std::clamp<__int128>(measured * kLikeOthers / others, 1, kMost));
}

}  // namespace kvern::router
