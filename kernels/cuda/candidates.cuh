// The k largest logits of a row, in order. A block per row: a radix search over 64-bit keys (value,
// then column: all different) finds the k-th largest in a few passes of 11 bits, the keys from it
// upward are collected and sorted.
#pragma once

#include "kernels/cuda/launch.h"
#include "kernels/cuda/sort_key.cuh"

namespace kvern::gpu {

inline constexpr int kTopThreads = 1024;
inline constexpr int kDigitBits = 11;
inline constexpr int kBins = 1 << kDigitBits;
static_assert(kBins == 2 * kTopThreads && kMaxCandidates <= kTopThreads);

// What the block shares.
struct TopShared {
  int bins[kBins];
  int of_warps[kTopThreads / 32];
  int taken;
  int digit;  // of the k-th largest key
  int above;  // keys with the same prefix and a larger digit
  int equal;  // and with that digit
  uint64_t keys[kTopThreads];
};

// Calls body(key) for the row's keys, each thread for its own columns.
template <typename Body>
__device__ __forceinline__ void ForEachKey(const float* logits, int columns, const Body& body) {
  KVERN_UNROLL_BY(4)
  for (int column = static_cast<int>(threadIdx.x); column < columns; column += kTopThreads) {
    body(SortKey(logits[column], static_cast<uint32_t>(column)));
  }
}

// Sets digit, above and equal: the digit at which the count from the largest digit down reaches
// `need`.
__device__ __forceinline__ void FindDigit(TopShared& shared, int need) {
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int bin = kBins - 1 - 2 * thread;
  const int counts[2] = {shared.bins[bin], shared.bins[bin - 1]};
  int up_to = counts[0] + counts[1];
  KVERN_UNROLL
  for (int offset = 1; offset < 32; offset *= 2) {
    const int before = __shfl_sync(0xffffffffu, up_to, static_cast<unsigned>(lane - offset) % 32);
    if (lane >= offset) up_to += before;
  }
  if (lane == 31) shared.of_warps[thread / 32] = up_to;
  KVERN_SYNC_THREADS(8);
  for (int warp = 0; warp < thread / 32; ++warp) up_to += shared.of_warps[warp];
  const int before = up_to - counts[0] - counts[1];
  if (before >= need || up_to < need) return;
  const int second = before + counts[0] < need ? 1 : 0;
  shared.digit = bin - second;
  shared.above = before + second * counts[0];
  shared.equal = counts[second];
}

// The k-th largest key of the row, or a smaller one that as many keys reach. 1 <= k <= columns.
__device__ __forceinline__ uint64_t Threshold(const float* logits, int columns, int k,
                                              TopShared& shared) {
  uint64_t prefix = 0;  // the bits from `top` upward
  int need = k;
  int top = 64;
  while (true) {
    const int shift = top > kDigitBits ? top - kDigitBits : 0;
    const auto thread = threadIdx.x;
    shared.bins[thread] = 0;
    shared.bins[thread + kTopThreads] = 0;
    KVERN_SYNC_THREADS(6);
    ForEachKey(logits, columns, [&](uint64_t key) {
      // In two steps: a shift by 64 is undefined.
      if (key >> (top - 1) >> 1 != prefix) return;
      const uint64_t digit = (key >> shift) & ((uint64_t{1} << (top - shift)) - 1);
      atomicAdd(&shared.bins[digit], 1);
    });
    KVERN_SYNC_THREADS(7);
    FindDigit(shared, need);
    KVERN_SYNC_THREADS(9);
    need -= shared.above;
    prefix = prefix << (top - shift) | static_cast<uint64_t>(shared.digit);
    if (shared.equal == need) return prefix << shift;
    top = shift;
  }
}

// Descending, in place, the first `count` (a power of two).
__device__ __forceinline__ void BitonicSort(uint64_t* keys, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  for (int run = 2; run <= count; run *= 2) {
    for (int stride = run / 2; stride > 0; stride /= 2) {
      const int other = thread ^ stride;
      if (other > thread && other < count) {
        const uint64_t a = keys[thread];
        const uint64_t b = keys[other];
        if ((a < b) == ((thread & run) == 0)) {
          keys[thread] = b;
          keys[other] = a;
        }
      }
      KVERN_SYNC_THREADS(11);
    }
  }
}

KVERN_KERNEL(kTopThreads, TopCandidatesKernel, LogitsArgs args, int k, ScoredColumn* out) {
  KVERN_SHARED(TopShared, block, 1);
  TopShared& shared = block[0];
  const float* logits = args.logits + args.requests[blockIdx.x].row * args.stride;
  const int thread = static_cast<int>(threadIdx.x);
  shared.keys[thread] = 0;
  if (thread == 0) shared.taken = 0;
  const uint64_t threshold = Threshold(logits, args.columns, k, shared);
  ForEachKey(logits, args.columns, [&](uint64_t key) {
    if (key >= threshold) shared.keys[atomicAdd(&shared.taken, 1)] = key;
  });
  KVERN_SYNC_THREADS(10);
  int count = 1;
  while (count < k) count *= 2;
  BitonicSort(shared.keys, count);
  if (thread >= k) return;
  const auto column = ~static_cast<uint32_t>(shared.keys[thread]);
  const float value = logits[column];
  out[static_cast<int64_t>(blockIdx.x) * k + thread] = {
      value == value ? value : -__builtin_huge_valf(), column};
}

}  // namespace kvern::gpu
