// The column with the largest logit * inverse_temperature + Gumbel noise. Block x: kGumbelColumns
// columns; y: a request. The best key of each warp goes into the result by an atomic maximum, which
// is the same in any order.
//
// The noise is what kernels/cpu/sampling.cc computes, operation by operation and without fused
// multiply-adds, so that both devices choose alike.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/sort_key.cuh"

namespace kvern::gpu {

inline constexpr int kGumbelThreads = 128;
inline constexpr int kGumbelSteps = 4;
inline constexpr int kGumbelColumns = kGumbelSteps * kGumbelThreads;

// SplitMix64's output function, as cluster/base/rng.h has it.
__device__ __forceinline__ uint64_t MixBits(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

__device__ __forceinline__ uint64_t DoubleBits(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
__device__ __forceinline__ double BitsToDouble(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// The natural logarithm of a positive normal x: x = 2^e m, m in [sqrt(1/2), sqrt(2)); log m = 2
// atanh(f), f = (m - 1) / (m + 1), by its series up to f^21.
__device__ __forceinline__ double LogOf(double x) {
  constexpr uint64_t kRootHalf = 0x3fe6a09e667f3bcdull;
  const uint64_t bits = DoubleBits(x);
  const auto exponent = static_cast<int64_t>(bits - kRootHalf) >> 52;
  const double m = BitsToDouble(bits - (static_cast<uint64_t>(exponent) << 52));
  const double f = (m - 1.0) / (m + 1.0);
  const double s = MulRounded(f, f);
  double series = 1.0 / 21;
  KVERN_UNROLL
  for (int odd = 19; odd >= 3; odd -= 2) series = MulRounded(series, s) + 1.0 / odd;
  const double two_f = f + f;
  const double log_m = two_f + MulRounded(two_f, MulRounded(s, series));
  return MulRounded(static_cast<double>(exponent), 0.693147180559945309417) + log_m;
}

__device__ __forceinline__ double GumbelNoise(uint64_t mixed_key, uint64_t id) {
  const uint64_t bits = MixBits(MixBits(MixBits(mixed_key ^ id)));
  // (bits >> 12) * 2^-52 + 2^-53, exactly.
  const double u = (BitsToDouble(bits >> 12 | 0x3ff0000000000000ull) - 1.0) + 0x1p-53;
  return 0.0 - LogOf(0.0 - LogOf(u));
}

KVERN_KERNEL(kGumbelThreads, GumbelMaxKernel, LogitsArgs args, uint64_t first_id, uint64_t* best) {
  const SampleRow request = args.requests[blockIdx.y];
  const float* logits = args.logits + request.row * args.stride;
  const uint64_t mixed_key = MixBits(request.key);
  const auto scale = static_cast<double>(request.inverse_temperature);
  uint64_t key = 0;
  for (int step = 0; step < kGumbelSteps; ++step) {
    const auto column =
        static_cast<uint32_t>(step * kGumbelThreads) + blockIdx.x * kGumbelColumns + threadIdx.x;
    if (column >= static_cast<uint32_t>(args.columns)) break;
    const double noise = GumbelNoise(mixed_key, first_id + column);
    const auto value =
        static_cast<float>(MulRounded(static_cast<double>(logits[column]), scale) + noise);
    if (value == value) key = Larger()(key, SortKey(value, column));
  }
  key = WarpReduce(key, Larger());
  if (threadIdx.x % 32 == 0 && key != 0) {
    atomicMax(reinterpret_cast<unsigned long long*>(best + blockIdx.y), key);
  }
}

}  // namespace kvern::gpu
