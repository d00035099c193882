// The two launches over attention's work lists, per type of cache element: instantiated by one .cu
// file each, because they take long to compile.
#pragma once

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/launch_kernel.cuh"

namespace kvern::gpu {

template <typename Kv, int kDim>
cudaError_t WalkLists(const AttentionArgs& args, cudaStream_t stream) {
  constexpr size_t kSharedBytes = kStages * StageBytes(kDim);
  // What a launch may use without asking.
  static_assert(kSharedBytes <= 48 * 1024);
  const PageStrides strides = StridesOf(args.pages, args.layer);
  const cudaError_t error =
      Launch("Attention (narrow)", &AttentionKernel<Kv, kDim, 1>,
             {dim3(static_cast<unsigned>(args.narrow_blocks)), dim3(32), kSharedBytes}, stream,
             args, strides);
  if (error != cudaSuccess) return error;
  return Launch("Attention (wide)", &AttentionKernel<Kv, kDim, 4>,
                {dim3(static_cast<unsigned>(args.wide_blocks)), dim3(128), kSharedBytes}, stream,
                args, strides);
}

template <typename Kv>
cudaError_t WalkAttention(const AttentionArgs& args, cudaStream_t stream) {
  switch (args.pages.head_dim) {
    case 16:
      return WalkLists<Kv, 16>(args, stream);
    case 32:
      return WalkLists<Kv, 32>(args, stream);
    case 64:
      return WalkLists<Kv, 64>(args, stream);
    case 128:
      return WalkLists<Kv, 128>(args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace kvern::gpu
