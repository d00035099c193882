// The kind of GPU that a test of models runs on: the one for which it was built, the real one by
// nvcc (tools/gpu_check), the emulated one otherwise.
#pragma once

#include "worker/comm/nccl/gpu_backend.h"

#ifdef __CUDACC__
#include "cluster/base/check.h"
#include "worker/comm/nccl/load_backend.h"
#else
#include "kernels/simt/runtime/enqueue.h"
#endif

namespace kvern {

#ifdef __CUDACC__

inline constexpr bool kEmulated = false;
inline const GpuBackend& TestedGpu() {
  absl::StatusOr<const GpuBackend*> backend = CudaBackend();
  KVERN_CHECK(backend.ok()) << backend.status();
  return **backend;
}

#else

inline constexpr bool kEmulated = true;
inline const GpuBackend& TestedGpu() { return EmulatedBackend(); }

#endif

// As simt::MakeStreamLate; a real GPU is as late as it is.
inline void MakeStreamLate([[maybe_unused]] int gpu, [[maybe_unused]] int nth) {
#ifndef __CUDACC__
  simt::MakeStreamLate(gpu, nth);
#endif
}

}  // namespace kvern
