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

size_t AllowedDynamicShared(const void* kernel) {
  DynamicShared& attributes = Attributes();
  const std::lock_guard lock(attributes.mutex);
  auto found = attributes.allowed.find(kernel);
  return found == attributes.allowed.end() ? kDefaultDynamicShared : found->second;
}

}  // namespace

cudaError_t EnqueueKernel(cudaStream_t stream, const LaunchShape& shape, const void* kernel,
                          std::function<void()> thread_body) {
  if (shape.dynamic_shared_bytes > AllowedDynamicShared(kernel)) {
    return Answer(cudaErrorInvalidValue);
  }
  if (LaunchShapeProblem(shape) != nullptr) return Answer(cudaErrorInvalidConfiguration);
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
