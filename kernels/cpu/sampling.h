// What sampling needs of a logits row, over this rank's columns.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/isa.h"

namespace kvern::cpu {

// A column and its value.
struct ScoredColumn {
  float value = 0;
  uint32_t column = 0;
};

struct SamplingKernels {
  // Writes the min(k, n) largest of logits[0..n) to out, value descending, then column ascending;
  // returns how many. A NaN counts as minus infinity.
  size_t (*top)(const float* logits, int64_t n, int64_t k, ScoredColumn* out);
  // *max = the largest logit; returns the float64 sum of e^((x - max) * inverse_temperature),
  // summed in 16 lanes in column order, then over the lanes in a fixed order.
  double (*log_sum_exp)(const float* logits, int64_t n, float inverse_temperature, float* max);
  // The column with the largest logit * inverse_temperature + Gumbel(key, first_id + column), the
  // lowest of equal ones. The noise is -log(-log(u)) in float64, u = UnitInterval(HashCounter(key,
  // id)) as cluster/base/rng.h defines them; the same bits on every instruction set.
  ScoredColumn (*gumbel_max)(const float* logits, int64_t n, float inverse_temperature,
                             uint64_t key, uint64_t first_id);
};

// REQUIRES: IsaSupported(isa).
const SamplingKernels& SamplingFor(Isa isa);

}  // namespace kvern::cpu
