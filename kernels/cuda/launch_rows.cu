// Launches of what works on rows and KV blocks.
#include "kernels/cuda/add_ordered.cuh"
#include "kernels/cuda/copy_blocks.cuh"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/embed.cuh"
#include "kernels/cuda/gather_rows.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_kernel.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/cuda/rope_kv.cuh"
#include "kernels/cuda/swiglu.cuh"
#include "kernels/cuda/to_bf16.cuh"

namespace kvern::gpu {

namespace {

// Block x: a row; y: `per_thread` columns per thread.
LaunchGrid RowGrid(int32_t rows, int32_t cols, int per_thread) {
  return {dim3(static_cast<unsigned>(rows), BlocksFor(cols, per_thread * kElementThreads)),
          dim3(kElementThreads)};
}

}  // namespace

cudaError_t LaunchEmbed(const EmbedArgs& args, cudaStream_t stream) {
  if (args.rows < 0 || args.hidden <= 0 || args.hidden % 8 != 0) return cudaErrorInvalidValue;
  const LaunchGrid grid = {
      dim3(static_cast<unsigned>(args.rows), BlocksFor(args.hidden, 8 * kRowThreads)),
      dim3(kRowThreads)};
  return Launch("Embed", &EmbedKernel, grid, stream, args);
}

cudaError_t LaunchRmsNorm(const RmsNormArgs& args, cudaStream_t stream) {
  if (args.rows < 0 || args.cols <= 0 || args.cols % 8 != 0 || args.cols > kMaxNormColumns) {
    return cudaErrorInvalidValue;
  }
  // As many threads as a row can feed; a function of the row's length alone.
  const int64_t parts = args.cols / 8;
  const unsigned threads = parts < kNormThreads ? BlocksFor(parts, 32) * 32 : kNormThreads;
  const LaunchGrid grid = {dim3(static_cast<unsigned>(args.rows)), dim3(threads)};
  auto* kernel = &RmsNormKernel<8>;
  if (parts <= kNormThreads) {
    kernel = &RmsNormKernel<1>;
  } else if (parts <= 2 * kNormThreads) {
    kernel = &RmsNormKernel<2>;
  } else if (parts <= 4 * kNormThreads) {
    kernel = &RmsNormKernel<4>;
  }
  return Launch("RmsNorm", kernel, grid, stream, args);
}

cudaError_t LaunchSwiGlu(const SwiGluArgs& args, cudaStream_t stream) {
  if (args.rows < 0 || args.columns <= 0 || args.columns % 8 != 0) return cudaErrorInvalidValue;
  return Launch("SwiGlu", &SwiGluKernel, RowGrid(args.rows, args.columns, 8), stream, args);
}

cudaError_t LaunchGatherRows(const GatherRowsArgs& args, cudaStream_t stream) {
  if (args.rows < 0 || args.cols <= 0 || args.cols % 4 != 0) return cudaErrorInvalidValue;
  return Launch("GatherRows", &GatherRowsKernel, RowGrid(args.rows, args.cols, 4), stream, args);
}

cudaError_t LaunchToBf16(const ToBf16Args& args, cudaStream_t stream) {
  if (args.count < 0) return cudaErrorInvalidValue;
  const LaunchGrid grid = {dim3(BlocksFor(args.count, 8 * kElementThreads)), dim3(kElementThreads)};
  return Launch("ToBf16", &ToBf16Kernel, grid, stream, args);
}

cudaError_t LaunchAddOrdered(const AddOrderedArgs& args, cudaStream_t stream) {
  if (args.count < 0 || args.count % 4 != 0 || args.ranks < 1) return cudaErrorInvalidValue;
  const LaunchGrid grid = {dim3(BlocksFor(args.count, 4 * kElementThreads)), dim3(kElementThreads)};
  return Launch("AddOrdered", &AddOrderedKernel, grid, stream, args);
}

cudaError_t LaunchCopyBlocks(const CopyBlocksArgs& args, cudaStream_t stream) {
  constexpr int32_t kMaxGridY = 65535;
  if (args.count < 0 || args.block_bytes <= 0 || args.block_bytes % 16 != 0) {
    return cudaErrorInvalidValue;
  }
  for (int32_t done = 0; done < args.count; done += kMaxGridY) {
    CopyBlocksArgs some = args;
    some.pairs = args.pairs + done;
    some.count = args.count - done < kMaxGridY ? args.count - done : kMaxGridY;
    const LaunchGrid grid = {
        dim3(BlocksFor(args.block_bytes, kCopyBytesPerBlock), static_cast<unsigned>(some.count)),
        dim3(kCopyThreads)};
    const cudaError_t error = Launch("CopyBlocks", &CopyBlocksKernel, grid, stream, some);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

cudaError_t LaunchRopeAndStoreKv(const RopeAndStoreKvArgs& args, cudaStream_t stream) {
  const KvPages& pages = args.pages;
  if (args.rows < 0 || args.q_heads <= 0 || pages.kv_heads <= 0 || pages.head_dim <= 0 ||
      pages.head_dim % 16 != 0 || args.layer < 0 || args.layer >= pages.layers) {
    return cudaErrorInvalidValue;
  }
  const LaunchGrid grid = {dim3(static_cast<unsigned>(args.rows)), dim3(kRopeThreads)};
  return Launch(
      "RopeAndStoreKv",
      pages.type == KvType::kBf16 ? &RopeAndStoreKvKernel<Bf16> : &RopeAndStoreKvKernel<float>,
      grid, stream, args);
}

}  // namespace kvern::gpu
