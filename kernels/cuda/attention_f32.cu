// Attention over a float32 cache.
#include "kernels/cuda/launch_attention.cuh"

namespace kvern::gpu {

template cudaError_t WalkAttention<float>(const AttentionArgs& args, cudaStream_t stream);

}  // namespace kvern::gpu
