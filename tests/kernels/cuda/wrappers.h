// Kernels that do one thing each with a wrapper of kernels/cuda/language.cuh. The emulated wrappers
// and those of PTX are two texts: the same test runs on both.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kvern::gpu {

// One warp. a: [16, 16], b: [n = 8, k = 16] (a row of b is a column of the product), both bf16
// bits; d: [16, 8] float32, d += a b.  b goes through ldmatrix as keys do in attention.
cudaError_t RunMma(const uint16_t* a, const uint16_t* b, float* d, cudaStream_t stream);

// The same with b: [k = 16, n = 8], through ldmatrix.trans as values do.
cudaError_t RunMmaTransposed(const uint16_t* a, const uint16_t* b, float* d, cudaStream_t stream);

// out[i] = bits of bf16(in[i]); packed[i] = in[2i] in the low half, in[2i + 1] in the high half.
cudaError_t RunToBf16(const float* in, int count, uint16_t* out, uint32_t* packed,
                      cudaStream_t stream);

// out[i] = Exp2(in[i]).
cudaError_t RunExp2(const float* in, int count, float* out, cudaStream_t stream);

// Copies `groups` chunks of 512 bytes through shared memory, one commit group each and two in
// flight; chunks whose bit in `valid` is 0 arrive as zeros. One warp.
cudaError_t RunCpAsync(const uint8_t* in, int groups, uint32_t valid, uint8_t* out,
                       cudaStream_t stream);

// out, of 32 words per row: 0 shuffle from lane 31 - i, 1 xor 5, 2 down 3, 3 ballot of odd lanes,
// 4 any of none, 5 all of all. out[192]: an atomic sum of 1..32, out[193] the atomic maximum.
cudaError_t RunWarp(uint32_t* out, cudaStream_t stream);

// Adds the number of its threads to *count: one block of `threads`, of a kernel whose blocks may
// have kMostCounted.
inline constexpr int kMostCounted = 64;
cudaError_t RunCount(unsigned threads, int* count, cudaStream_t stream);

}  // namespace kvern::gpu
