// Attention: the walk over both work lists, then the merge.
#include "kernels/cuda/attention_merge.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.cuh"

namespace kvern::gpu {

template <typename Kv>
cudaError_t WalkAttention(const AttentionArgs& args, cudaStream_t stream);  // launch_attention.cuh

namespace {

bool Valid(const AttentionArgs& args) {
  const KvPages& pages = args.pages;
  if (pages.kv_heads <= 0 || args.layer < 0 || args.layer >= pages.layers ||
      args.narrow_blocks < 0 || args.wide_blocks < 0 || args.merge_blocks < 0 ||
      args.q_stride % 8 != 0 || args.out_stride % 8 != 0 ||
      !AttentionUnsupported(pages.head_dim, args.q_heads, pages.kv_heads).empty()) {
    return false;
  }
  // Strides within a block are 32-bit; those from block to block are not.
  const int64_t block = int64_t{2} * pages.layers * pages.kv_heads * kPageTokens * pages.head_dim;
  return block <= INT32_MAX;
}

cudaError_t Merge(const AttentionArgs& args, cudaStream_t stream) {
  auto* kernel = &AttentionMergeKernel<128>;
  switch (args.pages.head_dim) {
    case 16:
      kernel = &AttentionMergeKernel<16>;
      break;
    case 32:
      kernel = &AttentionMergeKernel<32>;
      break;
    case 64:
      kernel = &AttentionMergeKernel<64>;
      break;
    default:
      break;
  }
  return Launch("AttentionMerge", kernel,
                {dim3(static_cast<unsigned>(args.merge_blocks)), dim3(kMergeThreads)}, stream,
                args);
}

}  // namespace

cudaError_t LaunchAttention(const AttentionArgs& args, cudaStream_t stream) {
  if (!Valid(args)) return cudaErrorInvalidValue;
  const cudaError_t error = args.pages.type == KvType::kBf16 ? WalkAttention<Bf16>(args, stream)
                                                             : WalkAttention<float>(args, stream);
  return error == cudaSuccess ? Merge(args, stream) : error;
}

}  // namespace kvern::gpu
