// Runs a kernel on the CPU.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>

#include "kernels/simt/call_site.h"
#include "kernels/simt/dim3.h"
#include "kernels/simt/fiber.h"

namespace kvern::simt {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t dynamic_shared_bytes = 0;
  const char* kernel = "";  // Its name, for messages. Must outlive the launch.
  // Of dynamic and static shared memory together. What is static is known when a thread reaches it.
  size_t shared_limit = 163 << 10;
  unsigned max_threads = 1024;  // of a block of this kernel: see LaunchBound
};

// Ends the process if the calling thread is a kernel's and its block has more threads than that.
void CheckBlockSize(unsigned max_threads, CallSite site);

// The first parameter of a kernel: the most threads that a block of it may have
// (__launch_bounds__). A thread that makes one, to call the kernel by hand, has its block checked.
template <unsigned kMaxThreads>
struct LaunchBound {
  static_assert(kMaxThreads >= 1 && kMaxThreads <= 1024);
  LaunchBound(CallSite site = CallSite::Here()) { CheckBlockSize(kMaxThreads, site); }
};

// Is the shape one that a GPU of compute capability 8.0 takes? Null if so, else what is wrong with
// it, as a phrase: "1025 threads in a block, at most 1024".
const char* LaunchShapeProblem(const LaunchShape& shape);
// The same of the kernel's own limit: "129 threads in a block of this kernel, at most 128".
const char* LaunchBoundProblem(const LaunchShape& shape);

// Calls `thread_body` once for each thread of each block, on the calling OS thread, and returns
// when all have returned. Blocks run one after another in ascending order of x, then y, then z; the
// threads of a block take turns, and only where they wait for each other or yield.
//
// A shape that has one of these problems, a deadlock, threads that meet in different collectives
// and misuse of shared memory are printed with kernel, block, thread and source line, and abort.
//
// Threads of two blocks of one launch cannot wait for each other. Those of launches on two OS
// threads can, if they wait in a loop around __nanosleep(). A block of which nothing comes but such
// waiting, for kIdleLimit, is taken for a deadlock.
void RunGrid(const LaunchShape& shape, const std::function<void()>& thread_body);

// Far more than another rank's kernel may be late.
inline constexpr std::chrono::milliseconds kIdleLimit = std::chrono::minutes(2);
// Another limit for every OS thread. For tests of kernels that cannot end.
void LimitIdling(std::chrono::milliseconds limit);

// Which kind of fiber launches use from now on, on every OS thread. Default: DefaultFiberKind().
void UseFibers(FiberKind kind);

}  // namespace kvern::simt
