// What is computed for one row of activations at a time: norms, the gated activation, rotary
// embedding, conversion to the KV cache's type. Sums run over 16 lanes in column order, then over
// the lanes in a fixed order.
#pragma once

#include <cstdint>

#include "kernels/cpu/isa.h"

namespace kvern::cpu {

struct RowKernels {
  // x += delta (unless delta is null), then out = x / sqrt(mean(x^2) + eps) * weight. All [n];
  // `out` may be `delta` or `x`.
  void (*rms_norm)(const float* delta, float* x, const float* weight, float eps, int64_t n,
                   float* out);
  // out[i] = gate[i] / (1 + e^-gate[i]) * up[i].
  void (*swiglu)(const float* gate, const float* up, int64_t n, float* out);
  // Rotates the pairs (i, i + half) of a head in place; cos, sin: [half].
  void (*rope)(float* head, const float* cos, const float* sin, int64_t half);
  // bfloat16, nearest, ties to even.
  void (*to_bf16)(const float* x, int64_t n, uint16_t* out);
};

// REQUIRES: IsaSupported(isa).
const RowKernels& RowsFor(Isa isa);

}  // namespace kvern::cpu
