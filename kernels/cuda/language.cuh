// The language that kernels are written in, and nothing else is included by them but plain structs:
// CUDA with PTX wrappers under nvcc, the same names on the CPU otherwise.
//
// Fragment layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type" and
// "ldmatrix".
#pragma once

#ifndef __CUDACC__

#include "kernels/simt/language.h"

#define KVERN_UNROLL
#define KVERN_UNROLL_BY(times)

#else

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

// Before a loop: all of it, so that arrays it indexes can be registers, or so many turns at a time.
#define KVERN_UNROLL _Pragma("unroll")
#define KVERN_PRAGMA(text) _Pragma(#text)
#define KVERN_UNROLL_BY(times) KVERN_PRAGMA(unroll times)

// A kernel, begun by the most threads its blocks may have, its name and its parameters.
#define KVERN_KERNEL(max_threads, name, ...) \
  __global__ void __launch_bounds__(max_threads) name(__VA_ARGS__)

// A static shared array; the launch's dynamic shared memory, 16-byte aligned.
#define KVERN_SHARED(type, name, count) __shared__ type name[count]
#define KVERN_DYNAMIC_SHARED(type, name)                                \
  extern __shared__ __align__(16) unsigned char kvern_dynamic_shared[]; \
  type* name = reinterpret_cast<type*>(kvern_dynamic_shared)

namespace kvern::gpu {

struct Bf16 {
  uint16_t bits;
};

__host__ __device__ __forceinline__ float ToFloat(Bf16 x) {
#ifdef __CUDA_ARCH__
  return __uint_as_float(static_cast<uint32_t>(x.bits) << 16);
#else
  return std::bit_cast<float>(static_cast<uint32_t>(x.bits) << 16);
#endif
}
// Nearest even; NaN stays NaN.
__host__ __device__ __forceinline__ Bf16 ToBf16(float x) {
#ifdef __CUDA_ARCH__
  Bf16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(x));
  return result;
#else
  if (x != x) return {0x7fff};
  const auto bits = std::bit_cast<uint32_t>(x);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  uint32_t result;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(result) : "f"(high), "f"(low));
  return result;
}

struct alignas(16) Vec16 {
  uint32_t word[4];
};
__device__ __forceinline__ Vec16 Load16(const void* source) {
  const uint4 v = *static_cast<const uint4*>(source);
  return {{v.x, v.y, v.z, v.w}};
}
__device__ __forceinline__ void Store16(void* target, Vec16 v) {
  *static_cast<uint4*>(target) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}

// 16 bytes to shared memory in the background; zeros when !valid, `global` is not read then.
__device__ __forceinline__ void CpAsync16(void* shared, const void* global, bool valid) {
  const auto target = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(target),
               "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0)
               : "memory");
}
__device__ __forceinline__ void CpAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the newest kPending committed groups of this thread have landed.
template <int kPending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane i passes row i % 8 of matrix i / 8.
__device__ __forceinline__ void LdMatrixX4(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ __forceinline__ void LdMatrixX4Trans(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// d += a * b: [16, 16] times [16, 8], bf16 in, float32 sums. Volatile as it is a step of the whole
// warp: an asm with no effect but its outputs may be moved to where they are used, into a branch
// that not all lanes take ("Inline PTX Assembly in CUDA", 1.2.3 and 1.2.4).
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// 2^x to about 2 units in the last place; results below the normal range become 0.
__device__ __forceinline__ float Exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// A product that is never fused with a following addition.
__device__ __forceinline__ double MulRounded(double a, double b) { return __dmul_rn(a, b); }

}  // namespace kvern::gpu

#endif  // __CUDACC__

// Barriers have a number, unique over all kernels, so that a test can leave one out and see that
// the race checker notices. Constant, and so without a trace, wherever KVERN_DROP_BARRIER is.
#ifndef KVERN_DROP_BARRIER
#define KVERN_DROP_BARRIER -1
#endif
#define KVERN_SYNC_THREADS(number)                       \
  do {                                                   \
    if ((number) != KVERN_DROP_BARRIER) __syncthreads(); \
  } while (false)
#define KVERN_SYNC_WARP(number)                       \
  do {                                                \
    if ((number) != KVERN_DROP_BARRIER) __syncwarp(); \
  } while (false)
