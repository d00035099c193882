// How work gets into a stream of the emulated device, and what tests do to such a device.
#pragma once

#include <cuda_runtime.h>

#include <functional>

#include "kernels/simt/grid.h"

namespace kvern::simt {

// What cudaLaunchKernel does: checks `shape` against the limits of an sm_80 device and puts the
// grid behind what the stream already has, or into the graph that it captures. `thread_body` is
// what one CUDA thread does, its arguments captured by value. `kernel` identifies the function for
// cudaFuncSetAttribute. Errors, which the last error keeps as well:
//   cudaErrorInvalidConfiguration  an empty grid or block, more than 1024 threads, a grid too large
//   cudaErrorInvalidValue          more than 48 KiB of dynamic shared memory without the attribute;
//                                  more threads than the kernel's launch bound (CUDA says that such
//                                  a launch fails and not how; this is what drivers answer)
//   cudaErrorInvalidResourceHandle a stream of another device than the calling thread's
// Static shared memory counts too, but is known only when the kernel runs: more than 48 KiB
// together without the attribute, or than 163 KiB with it, ends the process there.
cudaError_t EnqueueKernel(cudaStream_t stream, LaunchShape shape, const void* kernel,
                          std::function<void()> thread_body);

// Any work on the stream's thread, in order and captured like a kernel: what the other stand-in
// libraries are made of.
cudaError_t EnqueueTask(cudaStream_t stream, std::function<void()> task);

// Puts `device` into the state a kernel that faults leaves behind: every call for it answers
// `error` from now on, cudaSuccess mends it. For tests: a real device would need a new process.
void BreakDevice(int device, cudaError_t error);

// Of the streams that are made on `device` from now on, the `nth` (0: the next) does its work as
// late as it may: when a stream, an event or the host waits for it. For tests: an order that other
// streams only have by chance is lost, and so a wait that is missing shows every time.
void MakeStreamLate(int device, int nth);

// Whether every algorithm that cuBLASLt chooses on `device` from now on splits K. For tests of who
// needs one that does not.
void AlwaysSplitProducts(int device, bool always);

// Whether what calls ncclCommAbort on `device` from now on waits there, as with the real one when a
// kernel is stuck or a peer is gone; false lets all of them go on. For tests of who gives up.
void HoldAborts(int device, bool hold);

// The calls of ncclCommAbort on `device` since the process began.
struct AbortTotals {
  int begun = 0;
  int ended = 0;
};
AbortTotals AbortsOf(int device);

// What cudaMalloc gave on `device` since the process began.
struct MallocTotals {
  size_t calls = 0;
  size_t bytes = 0;
};
MallocTotals MallocsOf(int device);

}  // namespace kvern::simt
