#include "worker/comm/nccl/gpu_backend.h"

#include "worker/comm/nccl/nccl_communicator.h"
#include "worker/device/cuda/cuda_device.h"

namespace kvern {
inline namespace KVERN_GPU_BUILD {
namespace {

class Backend final : public GpuBackend {
 public:
  const char* name() const override { return GpuBuildName(); }
  absl::StatusOr<int> CountGpus() const override { return CudaContext::CountGpus(); }
  absl::StatusOr<std::unique_ptr<Device>> NewDevice(const GpuDeviceConfig& config) const override {
    return CudaDevice::Open(config);
  }
  absl::StatusOr<std::vector<uint8_t>> NewCommId() const override {
    return NcclCommunicator::NewId();
  }
  absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(
      Device* device, std::unique_ptr<Communicator> control, std::span<const uint8_t> id,
      std::unique_ptr<Buffer> gathered, Duration timeout) const override {
    auto& context = static_cast<CudaDevice*>(device)->context();
    return NcclCommunicator::Meet(context, std::move(control), id, std::move(gathered), timeout);
  }
  size_t GatheredBytes(int world) const override { return NcclCommunicator::GatheredBytes(world); }
};

}  // namespace
}  // namespace KVERN_GPU_BUILD

#ifdef KVERN_PLUGIN_BUILD
// How whoever loads the plugin finds it, and sees first that both are of one build.
extern "C" const char* KvernGpuBuild() { return KVERN_PLUGIN_BUILD; }
extern "C" const GpuBackend* KvernGpuBackend() {
  static const Backend backend;
  return &backend;
}
#else
const GpuBackend& EmulatedBackend() {
  static const Backend backend;
  return backend;
}
#endif

}  // namespace kvern
