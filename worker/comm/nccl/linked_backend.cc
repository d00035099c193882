// CudaBackend() of a program that has the backend within it, as those have that tools/gpu_check
// carries to other machines: they link this in the place of what loads plugins.
#include "worker/comm/nccl/load_backend.h"

extern "C" const kvern::GpuBackend* KvernGpuBackend();  // of gpu_backend.cc

namespace kvern {

absl::StatusOr<const GpuBackend*> CudaBackend() {
  KVERN_RETURN_IF_ERROR(KvernGpuBackend()->CountGpus().status());
  return KvernGpuBackend();
}

}  // namespace kvern
