// Attention over a bf16 cache.
#include "kernels/cuda/launch_attention.cuh"

namespace kvern::gpu {

template cudaError_t WalkAttention<Bf16>(const AttentionArgs& args, cudaStream_t stream);

}  // namespace kvern::gpu
