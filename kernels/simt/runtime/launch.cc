// Launches, within the limits of an sm_80 device.
#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/state.h"

namespace kvern::simt {
namespace {

// What cudaFuncSetAttribute allowed each kernel.
struct DynamicShared {
  std::mutex mutex;
  std::map<const void*, size_t> allowed;
};

DynamicShared& Attributes() {
  static auto* const attributes = new DynamicShared;
  return *attributes;
}

// Bytes of dynamic shared memory that `kernel` may be launched with, and of dynamic and static
// together: 48 KiB, or with the attribute 163 KiB less what that allows and is not used.
struct SharedLimits {
  size_t dynamic;
  size_t together;
};
SharedLimits LimitsOf(const void* kernel, size_t dynamic_bytes) {
  DynamicShared& attributes = Attributes();
  const std::lock_guard lock(attributes.mutex);
  auto found = attributes.allowed.find(kernel);
  if (found == attributes.allowed.end()) return {kDefaultDynamicShared, kDefaultDynamicShared};
  return {found->second, kMaxDynamicShared - found->second + dynamic_bytes};
}

}  // namespace

cudaError_t EnqueueKernel(cudaStream_t stream, LaunchShape shape, const void* kernel,
                          std::function<void()> thread_body) {
  const SharedLimits limits = LimitsOf(kernel, shape.dynamic_shared_bytes);
  if (shape.dynamic_shared_bytes > limits.dynamic) return Answer(cudaErrorInvalidValue);
  shape.shared_limit = limits.together;
  if (LaunchShapeProblem(shape) != nullptr) return Answer(cudaErrorInvalidConfiguration);
  if (LaunchBoundProblem(shape) != nullptr) return Answer(cudaErrorInvalidValue);
  return EnqueueTask(stream, [shape, body = std::move(thread_body)] { RunGrid(shape, body); });
}

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

using kvern::simt::Answer;

cudaError_t cudaFuncSetAttribute(const void* function, cudaFuncAttribute attribute, int value) {
  if (function == nullptr) return Answer(cudaErrorInvalidDeviceFunction);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      static_cast<size_t>(value) > kvern::simt::kMaxDynamicShared) {
    return Answer(cudaErrorInvalidValue);
  }
  auto& attributes = kvern::simt::Attributes();
  const std::lock_guard lock(attributes.mutex);
  // The default is what any kernel may use without asking.
  attributes.allowed[function] =
      std::max(static_cast<size_t>(value), kvern::simt::kDefaultDynamicShared);
  return Answer(cudaSuccess);
}

}  // namespace kvern_emulated_cuda
