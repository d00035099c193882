// One way to launch a kernel, without <<<>>>: arguments become the kernel's own parameter types, by
// value, at the call.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <tuple>

#ifndef __CUDACC__
#include "kernels/simt/runtime/enqueue.h"
#endif

namespace kvern::gpu {

struct LaunchGrid {
  dim3 blocks;
  dim3 threads;
  size_t shared_bytes = 0;  // dynamic
};

// An empty grid launches nothing.
template <typename... P, typename... A>
cudaError_t Launch([[maybe_unused]] const char* name, void (*kernel)(P...), const LaunchGrid& grid,
                   cudaStream_t stream, const A&... args) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0) return cudaSuccess;
  std::tuple<P...> values(args...);
#ifdef __CUDACC__
  return std::apply(
      [&](P&... each) {
        void* pointers[] = {&each...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid.blocks, grid.threads,
                                pointers, grid.shared_bytes, stream);
      },
      values);
#else
  return simt::EnqueueKernel(stream, {grid.blocks, grid.threads, grid.shared_bytes, name},
                             reinterpret_cast<const void*>(kernel),
                             [kernel, values] { std::apply(kernel, values); });
#endif
}

// Blocks of `size` that cover `count`.
constexpr unsigned BlocksFor(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace kvern::gpu
