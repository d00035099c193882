// CUDA C++ for a host compiler: what kernels/cuda/language.cuh gives a kernel when nvcc is not the
// compiler. Kernels include that file, not this one.
//
// Qualifiers vanish; the names of CUDA that a kernel may use are defined here, and nothing else is:
// a kernel that needs more has to add it for both compilers.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/simt/call_site.h"
#include "kernels/simt/dim3.h"
#include "kernels/simt/grid.h"
#include "kernels/simt/thread.h"

#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))

// A kernel, begun by the most threads its blocks may have (a constant), its name and its
// parameters: KVERN_KERNEL(128, ScaleKernel, float* x, float by) { ... }. Its first parameter
// carries the bound to whoever launches it; a call by hand passes {}. There is no other way to
// begin one: __global__ does not exist here, so that none goes without a bound.
#define KVERN_KERNEL(max_threads, name, ...)                                              \
  void name(::kvern::simt::LaunchBound<static_cast<unsigned>(max_threads)> __VA_OPT__(, ) \
                __VA_ARGS__)

#define threadIdx (::kvern::simt::ThreadIndex())
#define blockIdx (::kvern::simt::BlockIndex())
#define blockDim (::kvern::simt::BlockSize())
#define gridDim (::kvern::simt::GridSize())

// A static shared array `name[count]`, aligned as `type` needs it and no more, as nvcc does; every
// byte 0xFF at first.
#define KVERN_SHARED(type, name, count) \
  static char name##_shared_key;        \
  type(&name)[count] = ::kvern::simt::SharedArray<type, count>(&name##_shared_key, KVERN_SIMT_SITE)
// A pointer `name` to the launch's dynamic shared memory, 16-byte aligned, every byte 0xFF at
// first.
#define KVERN_DYNAMIC_SHARED(type, name) \
  type* const name = static_cast<type*>(::kvern::simt::DynamicShared())

#define __syncthreads() ::kvern::simt::SyncThreads(KVERN_SIMT_SITE)
#define __syncwarp(...) ::kvern::simt::SyncWarp(KVERN_SIMT_SITE __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) \
  ::kvern::simt::ShuffleValue(KVERN_SIMT_SITE, ::kvern::simt::Collective::kShuffle, __VA_ARGS__)
#define __shfl_xor_sync(...) \
  ::kvern::simt::ShuffleValue(KVERN_SIMT_SITE, ::kvern::simt::Collective::kShuffleXor, __VA_ARGS__)
#define __shfl_down_sync(...) \
  ::kvern::simt::ShuffleValue(KVERN_SIMT_SITE, ::kvern::simt::Collective::kShuffleDown, __VA_ARGS__)
#define __ballot_sync(mask, predicate)                                           \
  ::kvern::simt::Vote(KVERN_SIMT_SITE, ::kvern::simt::Collective::kBallot, mask, \
                      static_cast<bool>(predicate))
#define __any_sync(mask, predicate)                                                            \
  static_cast<int>(::kvern::simt::Vote(KVERN_SIMT_SITE, ::kvern::simt::Collective::kAny, mask, \
                                       static_cast<bool>(predicate)))
#define __all_sync(mask, predicate)                                                            \
  static_cast<int>(::kvern::simt::Vote(KVERN_SIMT_SITE, ::kvern::simt::Collective::kAll, mask, \
                                       static_cast<bool>(predicate)))

namespace kvern::simt {

inline const uint3& ThreadIndex() { return t_here.thread->index; }
inline const uint3& BlockIndex() { return t_here.block_index; }
inline const dim3& BlockSize() { return t_here.block_dim; }
inline const dim3& GridSize() { return t_here.grid_dim; }

template <typename T, size_t kCount>
T (&SharedArray(const void* key, CallSite site))
[kCount] {
  static_assert(std::is_trivially_default_constructible_v<T> && alignof(T) <= 16);
  return *static_cast<T(*)[kCount]>(StaticShared(key, sizeof(T) * kCount, alignof(T), site));
}

template <typename T>
T ShuffleValue(CallSite site, Collective op, uint32_t mask, T value, unsigned argument,
               unsigned width = kWarpSize) {
  static_assert(std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8));
  using Bits = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  uint64_t bits = Shuffle(site, op, mask, std::bit_cast<Bits>(value), argument, width);
  return std::bit_cast<T>(static_cast<Bits>(bits));
}

}  // namespace kvern::simt

inline constexpr int warpSize = 32;

// The lanes of the warp that have not returned: the most that a GPU could answer. No code may
// depend on more than its own bit.
inline unsigned __activemask() { return kvern::simt::t_here.thread->warp->live; }
inline void __threadfence() { kvern::simt::ThreadFence(); }
// Does not sleep: it lets all others run first, so that a loop that waits for them makes progress.
inline void __nanosleep(unsigned, kvern::simt::CallSite site = kvern::simt::CallSite::Here()) {
  kvern::simt::Yield(site);
}

// Atomics are relaxed, as CUDA's are: they order nothing else.
#define KVERN_SIMT_ATOMIC(name, type, method)                                        \
  inline type name(type* address, type value) {                                      \
    return std::atomic_ref<type>(*address).method(value, std::memory_order_relaxed); \
  }
#define KVERN_SIMT_ATOMIC_CAS(type)                                                     \
  inline type atomicCAS(type* address, type expected, type desired) {                   \
    std::atomic_ref<type>(*address).compare_exchange_strong(expected, desired,          \
                                                            std::memory_order_relaxed); \
    return expected;                                                                    \
  }
#define KVERN_SIMT_ATOMIC_MAX(type)                                               \
  inline type atomicMax(type* address, type value) {                              \
    std::atomic_ref<type> shared(*address);                                       \
    type before = shared.load(std::memory_order_relaxed);                         \
    while (!shared.compare_exchange_weak(before, before < value ? value : before, \
                                         std::memory_order_relaxed)) {            \
    }                                                                             \
    return before;                                                                \
  }
KVERN_SIMT_ATOMIC(atomicAdd, int, fetch_add)
KVERN_SIMT_ATOMIC(atomicAdd, unsigned, fetch_add)
KVERN_SIMT_ATOMIC(atomicAdd, unsigned long long, fetch_add)
KVERN_SIMT_ATOMIC(atomicAdd, float, fetch_add)
KVERN_SIMT_ATOMIC(atomicExch, int, exchange)
KVERN_SIMT_ATOMIC(atomicExch, unsigned, exchange)
KVERN_SIMT_ATOMIC(atomicExch, unsigned long long, exchange)
KVERN_SIMT_ATOMIC(atomicExch, float, exchange)
KVERN_SIMT_ATOMIC_CAS(int)
KVERN_SIMT_ATOMIC_CAS(unsigned)
KVERN_SIMT_ATOMIC_CAS(unsigned long long)
KVERN_SIMT_ATOMIC_MAX(int)
KVERN_SIMT_ATOMIC_MAX(unsigned)
KVERN_SIMT_ATOMIC_MAX(unsigned long long)
#undef KVERN_SIMT_ATOMIC
#undef KVERN_SIMT_ATOMIC_CAS
#undef KVERN_SIMT_ATOMIC_MAX

namespace kvern::gpu {

struct Bf16 {
  uint16_t bits;
};

inline float ToFloat(Bf16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

// Rounds to nearest, ties to even. Any NaN becomes 0x7FFF, as in __float2bfloat16.
inline Bf16 ToBf16(float value) {
  if (std::isnan(value)) return {0x7fff};
  uint32_t bits = std::bit_cast<uint32_t>(value);
  bits += 0x7fff + (bits >> 16 & 1);
  return {static_cast<uint16_t>(bits >> 16)};
}

// Two of them as a fragment register holds them: `low` in the lower half.
inline uint32_t PackBf16(float low, float high) {
  return static_cast<uint32_t>(ToBf16(low).bits) | static_cast<uint32_t>(ToBf16(high).bits) << 16;
}

// 16 bytes from global into shared memory (both 16-byte aligned), asynchronously; zeros, and
// nothing is read, when !valid. Until it was waited for, the destination reads as 0xFF.
inline void CpAsync16(void* shared, const void* global, bool valid,
                      simt::CallSite site = simt::CallSite::Here()) {
  simt::AsyncCopy16(shared, global, valid, site);
}
// What was issued since the last commit is a group.
inline void CpAsyncCommit() { simt::AsyncCommit(); }
// Until at most the kPending newest groups of this thread are under way. Other threads see the data
// only after a __syncwarp or __syncthreads.
template <int kPending>
void CpAsyncWait() {
  static_assert(kPending >= 0);
  simt::AsyncWait(static_cast<size_t>(kPending));
}

// Four 8 x 8 matrices of 16-bit elements; lane 8 i + r passes the address of row r of matrix i,
// 16 bytes in shared memory. r[i]: elements 2 (lane mod 4) and the next of row lane / 4.
inline void LdMatrixX4(uint32_t (&r)[4], const void* row,
                       simt::CallSite site = simt::CallSite::Here()) {
  simt::LoadMatrix(r, row, false, site);
}
// The same of the transposed matrices.
inline void LdMatrixX4Trans(uint32_t (&r)[4], const void* row,
                            simt::CallSite site = simt::CallSite::Here()) {
  simt::LoadMatrix(r, row, true, site);
}

// D += A * B, A 16 x 16 and B 16 x 8 in bf16, D 16 x 8 in float32, spread over the warp as the PTX
// ISA lays out fragments of mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32.
inline void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                    simt::CallSite site = simt::CallSite::Here()) {
  simt::MmaOperands operands = {d, a, b};
  simt::WarpCollective(simt::Collective::kMma, ~uint32_t{0}, site, &operands);
}

inline float Exp2(float x) { return std::exp2(x); }
inline float Log2(float x) { return std::log2(x); }
inline float Rsqrt(float x) { return 1.0f / std::sqrt(x); }
// A product that is never fused with a following addition (the build has -ffp-contract=off).
inline double MulRounded(double a, double b) { return a * b; }

struct alignas(16) Vec16 {
  uint32_t word[4];
};

// `from` and `to` are 16-byte aligned, in global or shared memory.
inline Vec16 Load16(const void* from, simt::CallSite site = simt::CallSite::Here()) {
  simt::CheckAligned16("Load16", from, site);
  Vec16 value;
  simt::Copy16(&value, from);
  return value;
}
inline void Store16(void* to, Vec16 value, simt::CallSite site = simt::CallSite::Here()) {
  simt::CheckAligned16("Store16", to, site);
  simt::Copy16(to, &value);
}

}  // namespace kvern::gpu
