#include "router/core/step_model.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern::router {
namespace {

constexpr uint64_t kOne = 16;  // weight of a new step: keeps the decay of small sums exact enough
constexpr uint64_t kDecay = 128;  // steps that count

// Prefill tokens by which steps must differ, or that they must have on average, to tell what one
// costs. A few more or less are lost in what else steps do: decodes, and the machine's noise.
constexpr __int128 kTelling = 16;

// Keep every sum within 64 bits: (2^20 tokens)^2 * kOne * kDecay = 2^51.
constexpr uint64_t kMaxTokens = uint64_t{1} << 20;
constexpr uint64_t kMaxStepUs = 60'000'000;

}  // namespace

void StepModel::Observe(Time now, uint64_t steps, uint64_t step_us, uint64_t prefill_tokens) {
  KVERN_CHECK(steps > 0);
  uint64_t us = std::min(step_us / steps, kMaxStepUs);
  uint64_t tokens = std::min(prefill_tokens / steps, kMaxTokens);
  for (uint64_t* sum : {&weight_, &time_, &tokens_, &time_tokens_, &tokens_tokens_}) {
    *sum -= *sum / kDecay;
  }
  weight_ += kOne;
  time_ += kOne * us;
  tokens_ += kOne * tokens;
  time_tokens_ += kOne * us * tokens;
  tokens_tokens_ += kOne * tokens * tokens;
  speed_.known_until = now + kMemory;
  speed_.mean = static_cast<Duration>(time_ * 1000 / weight_);
  Fit();
}

void StepModel::Fit() {
  __int128 w = weight_, t = time_, p = tokens_, tp = time_tokens_, pp = tokens_tokens_;
  __int128 variance = w * pp - p * p;
  __int128 covariance = w * tp - p * t;
  speed_.fixed_ns = speed_.ns_per_token = 0;
  bool differ = variance > kTelling * kTelling * w * w;
  if (differ && covariance > 0) {
    speed_.ns_per_token = static_cast<uint64_t>(covariance * 1000 / variance);
  } else if (!differ && p >= kTelling * w) {
    speed_.ns_per_token = static_cast<uint64_t>(t * 1000 / p);
    return;  // all steps alike: the rate is all that is known
  }
  __int128 fixed = (t * 1000 - p * static_cast<__int128>(speed_.ns_per_token)) / w;
  speed_.fixed_ns = fixed > 0 ? static_cast<uint64_t>(fixed) : 0;
}

Duration StepSpeed::Prefill(Time now, uint64_t tokens, uint64_t chunk) const {
  if (!known(now) || tokens == 0) return 0;
  KVERN_CHECK(chunk > 0);
  uint64_t steps = (tokens + chunk - 1) / chunk;
  return static_cast<Duration>(steps * fixed_ns + tokens * ns_per_token);
}

}  // namespace kvern::router
