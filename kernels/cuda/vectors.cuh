// 8 columns at a time: two 16-byte accesses of float32, one of bf16. Bits of floats.
#pragma once

#include <cstring>

#include "kernels/cuda/language.cuh"

namespace kvern::gpu {

__device__ __forceinline__ uint32_t FloatBits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
__device__ __forceinline__ float BitsToFloat(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

__device__ __forceinline__ void LoadFour(const float* source, float (&x)[4]) {
  const Vec16 v = Load16(source);
  KVERN_UNROLL
  for (int i = 0; i < 4; ++i) x[i] = BitsToFloat(v.word[i]);
}
__device__ __forceinline__ void StoreFour(float* target, const float (&x)[4]) {
  Vec16 v;
  KVERN_UNROLL
  for (int i = 0; i < 4; ++i) v.word[i] = FloatBits(x[i]);
  Store16(target, v);
}

// Two neighbours at once.
struct alignas(8) FloatPair {
  float first;
  float second;
};
__device__ __forceinline__ void StorePair(float* target, FloatPair pair) {
  *reinterpret_cast<FloatPair*>(target) = pair;
}

__device__ __forceinline__ void LoadEight(const float* source, float (&x)[8]) {
  const Vec16 low = Load16(source);
  const Vec16 high = Load16(source + 4);
  KVERN_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[i] = BitsToFloat(low.word[i]);
    x[i + 4] = BitsToFloat(high.word[i]);
  }
}
__device__ __forceinline__ void LoadEight(const Bf16* source, float (&x)[8]) {
  const Vec16 v = Load16(source);
  KVERN_UNROLL
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = BitsToFloat(v.word[i] << 16);
    x[2 * i + 1] = BitsToFloat(v.word[i] & 0xffff0000u);
  }
}

__device__ __forceinline__ void StoreEight(float* target, const float (&x)[8]) {
  Vec16 low;
  Vec16 high;
  KVERN_UNROLL
  for (int i = 0; i < 4; ++i) {
    low.word[i] = FloatBits(x[i]);
    high.word[i] = FloatBits(x[i + 4]);
  }
  Store16(target, low);
  Store16(target + 4, high);
}
__device__ __forceinline__ Vec16 PackEight(const float (&x)[8]) {
  Vec16 v;
  KVERN_UNROLL
  for (int i = 0; i < 4; ++i) v.word[i] = PackBf16(x[2 * i], x[2 * i + 1]);
  return v;
}
__device__ __forceinline__ void StoreEight(Bf16* target, const float (&x)[8]) {
  Store16(target, PackEight(x));
}

}  // namespace kvern::gpu
