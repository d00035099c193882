// The CUDA backend, which is a plugin: its libraries are ten times the rest of Kvern, and machines
// without a GPU need none of them.
#pragma once

#include <string>

#include "cluster/base/status.h"
#include "worker/comm/nccl/gpu_backend.h"

namespace kvern {

// The backend for NVIDIA GPUs, loaded by the first call and kept. Looks for libkvern_cuda.so in
// ../lib of this program, then beside it. FailedPrecondition, saying why: it was not built (both
// paths, and what builds it), one of its libraries is missing, or the machine has no usable GPU.
absl::StatusOr<const GpuBackend*> CudaBackend();

// What CudaBackend does with the file that it has found. FailedPrecondition as well, naming both
// builds, for a plugin that another build made: its classes may lie otherwise in memory.
absl::StatusOr<const GpuBackend*> LoadBackend(const std::string& path);

// Null where CudaBackend() has none: without a word, and at next to no cost, on a machine without
// NVIDIA's driver; where there is one, a warning says why its GPUs are not used.
const GpuBackend* CudaBackendIfUsable();

}  // namespace kvern
