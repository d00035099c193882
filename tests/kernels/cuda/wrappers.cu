#include "kernels/cuda/language.cuh"
#include "kernels/cuda/launch_kernel.cuh"
#include "tests/kernels/cuda/wrappers.h"

namespace kvern::gpu {
namespace {

constexpr int kLanes = 32;
const LaunchGrid kOneWarp{dim3(1), dim3(kLanes), 0};

// Fragments of a [16, 16], and of what is beside it, from shared memory.
__device__ __forceinline__ void LoadA(uint32_t (&fragment)[4], const uint16_t* a) {
  const auto lane = static_cast<int>(threadIdx.x);
  LdMatrixX4(fragment, a + lane % 16 * 16 + lane / 16 * 8);
}

// Lane i holds rows i / 4 and i / 4 + 8, columns 2 (i % 4) and the one after.
__device__ __forceinline__ void AddToD(const float (&fragment)[4], float* d) {
  const auto lane = static_cast<int>(threadIdx.x);
  float* at = d + lane / 4 * 8 + lane % 4 * 2;
  at[0] = fragment[0];
  at[1] = fragment[1];
  at[64] = fragment[2];
  at[65] = fragment[3];
}

template <bool kTransposed>
KVERN_KERNEL(kLanes, MmaKernel, const uint16_t* a, const uint16_t* b, float* d) {
  // An array is aligned as its type is, and ldmatrix wants 16 bytes.
  KVERN_SHARED(Vec16, rows_a, 16 * 16 / 8);
  KVERN_SHARED(Vec16, rows_b, 16 * 8 * 2 / 8);
  auto* shared_a = reinterpret_cast<uint16_t*>(rows_a);
  auto* shared_b = reinterpret_cast<uint16_t*>(rows_b);
  const auto lane = static_cast<int>(threadIdx.x);
  for (int i = lane; i < 16 * 16; i += kLanes) shared_a[i] = a[i];
  // ldmatrix x4 fetches twice what one product needs: the second half is zero.
  for (int i = lane; i < 16 * 8 * 2; i += kLanes) {
    shared_b[i] = i < 16 * 8 ? b[i] : static_cast<uint16_t>(0);
  }
  __syncwarp();
  uint32_t fragment_a[4];
  uint32_t fragment_b[4];
  LoadA(fragment_a, shared_a);
  if constexpr (kTransposed) {
    // Rows are k: matrices 0 and 1 are rows 0-7 and 8-15 of the 8 columns.
    LdMatrixX4Trans(fragment_b, shared_b + lane * 8);
  } else {
    // Rows are columns of the product: matrices 0 and 1 are k 0-7 and 8-15.
    LdMatrixX4(fragment_b, shared_b + lane % 8 * 16 + lane / 8 % 2 * 8 + lane / 16 * 16 * 8);
  }
  const auto row = lane / 4;
  const auto column = lane % 4 * 2;
  float sums[4] = {d[row * 8 + column], d[row * 8 + column + 1], d[(row + 8) * 8 + column],
                   d[(row + 8) * 8 + column + 1]};
  const uint32_t first[2] = {fragment_b[0], fragment_b[1]};
  const uint32_t zeros[2] = {fragment_b[2], fragment_b[3]};
  MmaBf16(sums, fragment_a, first);
  MmaBf16(sums, fragment_a, zeros);
  AddToD(sums, d);
}

KVERN_KERNEL(kLanes, ToBf16Kernel, const float* in, int count, uint16_t* out, uint32_t* packed) {
  for (auto i = static_cast<int>(threadIdx.x); i < count; i += kLanes) {
    out[i] = ToBf16(in[i]).bits;
    if (i % 2 == 0 && i + 1 < count) packed[i / 2] = PackBf16(in[i], in[i + 1]);
  }
}

KVERN_KERNEL(kLanes, Exp2Kernel, const float* in, int count, float* out) {
  for (auto i = static_cast<int>(threadIdx.x); i < count; i += kLanes) out[i] = Exp2(in[i]);
}

KVERN_KERNEL(kLanes, CpAsyncKernel, const uint8_t* in, int groups, uint32_t valid, uint8_t* out) {
  KVERN_SHARED(Vec16, stage_rows, 2 * 512 / 16);
  auto* stages = reinterpret_cast<uint8_t*>(stage_rows);
  const int offset = static_cast<int>(threadIdx.x) * 16;
  const auto fetch = [&](int group) {
    if (group < groups) {
      CpAsync16(stages + group % 2 * 512 + offset, in + group * 512 + offset,
                (valid >> group & 1) != 0);
    }
    CpAsyncCommit();
  };
  fetch(0);
  for (int group = 0; group < groups; ++group) {
    fetch(group + 1);
    CpAsyncWait<1>();
    Store16(out + group * 512 + offset, Load16(stages + group % 2 * 512 + offset));
  }
}

KVERN_KERNEL(kLanes, WarpKernel, uint32_t* out) {
  const uint32_t lane = threadIdx.x;
  const uint32_t all = 0xffffffffu;
  out[lane] = __shfl_sync(all, lane * 7, 31 - lane);
  out[32 + lane] = __shfl_xor_sync(all, lane * 7, 5);
  out[64 + lane] = __shfl_down_sync(all, lane * 7, 3);
  out[96 + lane] = __ballot_sync(all, lane % 2 == 1);
  out[128 + lane] = static_cast<uint32_t>(__any_sync(all, 0) != 0);
  out[160 + lane] = static_cast<uint32_t>(__all_sync(all, 1) != 0);
  atomicAdd(out + 192, lane + 1);
  atomicMax(out + 193, lane + 1);
}

template <int kWarps>
KVERN_KERNEL(32 * kWarps, CountKernel, int* count) {
  atomicAdd(count, 1);
}

}  // namespace

cudaError_t RunMma(const uint16_t* a, const uint16_t* b, float* d, cudaStream_t stream) {
  return Launch("Mma", MmaKernel<false>, kOneWarp, stream, a, b, d);
}

cudaError_t RunMmaTransposed(const uint16_t* a, const uint16_t* b, float* d, cudaStream_t stream) {
  return Launch("MmaTransposed", MmaKernel<true>, kOneWarp, stream, a, b, d);
}

cudaError_t RunToBf16(const float* in, int count, uint16_t* out, uint32_t* packed,
                      cudaStream_t stream) {
  return Launch("ToBf16", ToBf16Kernel, kOneWarp, stream, in, count, out, packed);
}

cudaError_t RunExp2(const float* in, int count, float* out, cudaStream_t stream) {
  return Launch("Exp2", Exp2Kernel, kOneWarp, stream, in, count, out);
}

cudaError_t RunCpAsync(const uint8_t* in, int groups, uint32_t valid, uint8_t* out,
                       cudaStream_t stream) {
  return Launch("CpAsync", CpAsyncKernel, kOneWarp, stream, in, groups, valid, out);
}

cudaError_t RunWarp(uint32_t* out, cudaStream_t stream) {
  return Launch("Warp", WarpKernel, kOneWarp, stream, out);
}

cudaError_t RunCount(unsigned threads, int* count, cudaStream_t stream) {
  return Launch("Count", CountKernel<kMostCounted / 32>, {dim3(1), dim3(threads)}, stream, count);
}

}  // namespace kvern::gpu
