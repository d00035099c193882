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

// An empty grid launches nothing; a block of more threads than the kernel's bound is an error.
#ifdef __CUDACC__
template <typename... P, typename... A>
cudaError_t Launch(const char*, void (*kernel)(P...), const LaunchGrid& grid, cudaStream_t stream,
                   const A&... args) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0) return cudaSuccess;
  std::tuple<P...> values(args...);
  return std::apply(
      [&](P&... each) {
        void* pointers[] = {&each...};
        return cudaLaunchKernel(reinterpret_cast<const void*>(kernel), grid.blocks, grid.threads,
                                pointers, grid.shared_bytes, stream);
      },
      values);
}
#else
// A function that is no KVERN_KERNEL, and so has no bound, does not compile here.
template <unsigned kMaxThreads, typename... P, typename... A>
cudaError_t Launch(const char* name, void (*kernel)(simt::LaunchBound<kMaxThreads>, P...),
                   const LaunchGrid& grid, cudaStream_t stream, const A&... args) {
  if (grid.blocks.x == 0 || grid.blocks.y == 0) return cudaSuccess;
  simt::LaunchShape shape = {grid.blocks, grid.threads, grid.shared_bytes, name};
  shape.max_threads = kMaxThreads;
  const std::tuple<simt::LaunchBound<kMaxThreads>, P...> values(simt::LaunchBound<kMaxThreads>{},
                                                                args...);
  return simt::EnqueueKernel(stream, shape, reinterpret_cast<const void*>(kernel),
                             [kernel, values] { std::apply(kernel, values); });
}
#endif

// Blocks of `size` that cover `count`.
constexpr unsigned BlocksFor(int64_t count, int64_t size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

}  // namespace kvern::gpu
