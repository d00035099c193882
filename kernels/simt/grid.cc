#include "kernels/simt/grid.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "kernels/simt/block.h"
#include "kernels/simt/report.h"

namespace kvern::simt {
namespace {

std::atomic<FiberKind> g_fiber_kind = DefaultFiberKind();

const char* Problem(const char* what, unsigned long long value, unsigned long long limit) {
  thread_local char text[96];
  std::snprintf(text, sizeof(text), "%llu %s, at most %llu", value, what, limit);
  return text;
}

}  // namespace

const char* LaunchShapeProblem(const LaunchShape& shape) {
  struct Limit {
    const char* what;
    unsigned long long value;
    unsigned long long limit;
  };
  const dim3& grid = shape.grid;
  const dim3& block = shape.block;
  const Limit limits[] = {
      {"blocks in x", grid.x, 0x7fffffff},
      {"blocks in y", grid.y, 65535},
      {"blocks in z", grid.z, 65535},
      {"threads in a block in x", block.x, 1024},
      {"threads in a block in y", block.y, 1024},
      {"threads in a block in z", block.z, 64},
      {"threads in a block", 1ull * block.x * block.y * block.z, kMaxBlockThreads},
  };
  for (const Limit& limit : limits) {
    if (limit.value > limit.limit) return Problem(limit.what, limit.value, limit.limit);
    if (limit.value == 0) return "a size of the grid or the block is 0";
  }
  if (shape.dynamic_shared_bytes > kMaxSharedBytes) {
    return Problem("bytes of dynamic shared memory", shape.dynamic_shared_bytes, kMaxSharedBytes);
  }
  return nullptr;
}

const char* LaunchBoundProblem(const LaunchShape& shape) {
  const dim3& block = shape.block;
  const unsigned long long threads = 1ull * block.x * block.y * block.z;
  if (threads <= shape.max_threads) return nullptr;
  return Problem("threads in a block of this kernel", threads, shape.max_threads);
}

void CheckBlockSize(unsigned max_threads, CallSite site) {
  if (t_here.thread == nullptr) return;
  LaunchShape shape;
  shape.block = t_here.block_dim;
  shape.max_threads = max_threads;
  const char* problem = LaunchBoundProblem(shape);
  if (problem != nullptr) Fail(site, "%s", problem);
}

void RunGrid(const LaunchShape& shape, const std::function<void()>& thread_body) {
  const char* problem = LaunchShapeProblem(shape);
  if (problem == nullptr) problem = LaunchBoundProblem(shape);
  if (t_here.thread != nullptr) problem = "launched by a thread of a kernel";
  if (problem != nullptr) {
    std::fprintf(stderr, "simt: kernel '%s' cannot be launched: %s\n", shape.kernel, problem);
    std::abort();
  }
  // Fibers, stacks and shared memory are kept from one launch to the next.
  thread_local std::unique_ptr<Block> block;
  FiberKind kind = g_fiber_kind.load(std::memory_order_relaxed);
  if (block == nullptr || block->kind() != kind) block = std::make_unique<Block>(kind);
  block->RunAll(shape, thread_body);
}

void UseFibers(FiberKind kind) { g_fiber_kind.store(kind, std::memory_order_relaxed); }

}  // namespace kvern::simt
