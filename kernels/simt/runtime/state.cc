#include "kernels/simt/runtime/state.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <system_error>

#include "kernels/simt/runtime/enqueue.h"

namespace kvern::simt {
namespace {

thread_local int current_device = 0;
thread_local cudaError_t last_error = cudaSuccess;

struct Named {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr Named kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInitializationError, "cudaErrorInitializationError", "initialization error"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration",
     "invalid configuration argument"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection",
     "invalid copy direction for memcpy"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction", "invalid device function"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle", "invalid resource handle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState",
     "the operation cannot be performed in the present state"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress",
     "an illegal memory access was encountered"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources",
     "too many resources requested for launch"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "operation not supported"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "operation not permitted when stream is capturing"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "operation failed due to a previous error during capture"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "capture was not ended in the same stream as it began"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "dependency created on uncaptured work in another stream"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent",
     "operation not permitted on an event last recorded in a capturing stream"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread",
     "attempt to terminate a thread-local capture sequence from another thread"},
};

const Named* Find(cudaError_t error) {
  for (const Named& named : kErrors) {
    if (named.error == error) return &named;
  }
  return nullptr;
}

size_t NumberFrom(const char* variable, size_t otherwise) {
  const char* text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return otherwise;
  size_t value = 0;
  const char* text_end = text + std::strlen(text);
  const auto [end, error] = std::from_chars(text, text_end, value);
  if (error == std::errc() && end == text_end) return value;
  std::fprintf(stderr, "emulated GPU: %s is '%s', allowed: a whole number\n", variable, text);
  std::exit(2);  // as for any usage error
}

}  // namespace

DeviceState& Device(int device) {
  static auto* const devices = new DeviceState[kMaxDevices];
  return devices[device];
}

int DeviceCount() {
  constexpr size_t kUsual = 8;  // as many as a machine usually has
  return static_cast<int>(
      std::min<size_t>(NumberFrom("KVERN_EMULATED_DEVICES", kUsual), kMaxDevices));
}

size_t DeviceBytes() {
  const auto machine =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  return NumberFrom("KVERN_EMULATED_MEMORY", machine);
}

int CurrentDevice() { return current_device; }

bool IsDeviceMemory(const void* address, size_t bytes) {
  const auto* at = static_cast<const char*>(address);
  for (int d = 0; d < kMaxDevices; ++d) {
    DeviceState& state = Device(d);
    const std::lock_guard lock(state.mutex);
    auto after = state.allocations.upper_bound(at);
    if (after == state.allocations.begin()) continue;
    const auto& [begin, size] = *std::prev(after);
    if (static_cast<size_t>(at - begin) <= size && bytes <= size - static_cast<size_t>(at - begin))
      return true;
  }
  return false;
}

cudaError_t Broken() { return Device(current_device).broken.load(); }

cudaError_t Answer(cudaError_t error) {
  const cudaError_t broken = Broken();
  if (broken != cudaSuccess) error = broken;
  if (error != cudaSuccess && error != cudaErrorNotReady) last_error = error;
  return error;
}

void BreakDevice(int device, cudaError_t error) { Device(device).broken = error; }

void MakeStreamLate(int device, int nth) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  state.late_stream = nth;
}

bool NextStreamIsLate(int device) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  return state.late_stream >= 0 && state.late_stream-- == 0;
}

void AlwaysSplitProducts(int device, bool always) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  state.always_splits = always;
}

bool AlwaysSplitsProducts(int device) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  return state.always_splits;
}

void HoldAborts(int device, bool hold) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  state.aborts_held = hold;
  state.abort_let_go.notify_all();
}

AbortTotals AbortsOf(int device) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  return {state.aborts_begun, state.aborts_ended};
}

MallocTotals MallocsOf(int device) {
  DeviceState& state = Device(device);
  const std::lock_guard lock(state.mutex);
  return {state.mallocs, state.malloc_bytes};
}

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

using kvern::simt::Answer;

const char* cudaGetErrorName(cudaError_t error) {
  const auto* named = kvern::simt::Find(error);
  return named == nullptr ? "unrecognized error code" : named->name;
}

const char* cudaGetErrorString(cudaError_t error) {
  const auto* named = kvern::simt::Find(error);
  return named == nullptr ? "unrecognized error code" : named->text;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  kvern::simt::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t broken = kvern::simt::Broken();
  return broken != cudaSuccess ? broken : kvern::simt::last_error;
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = kvern::simt::DeviceCount();
  return *count > 0 ? cudaSuccess : Answer(cudaErrorNoDevice);
}

cudaError_t cudaGetDevice(int* device) {
  *device = kvern::simt::CurrentDevice();
  return Answer(cudaSuccess);
}

cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= kvern::simt::DeviceCount()) return Answer(cudaErrorInvalidDevice);
  kvern::simt::current_device = device;
  return Answer(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= kvern::simt::DeviceCount()) return Answer(cudaErrorInvalidDevice);
  *properties = {};
  std::snprintf(properties->name, sizeof(properties->name), "emulated");
  properties->totalGlobalMem = kvern::simt::DeviceBytes();
  properties->sharedMemPerBlock = kvern::simt::kDefaultDynamicShared;
  properties->sharedMemPerBlockOptin = kvern::simt::kMaxDynamicShared;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = 1024;
  // A grid is cut by its size, not by this; few, since blocks run one after another.
  properties->multiProcessorCount = 4;
  properties->major = 8;
  return Answer(cudaSuccess);
}

}  // namespace kvern_emulated_cuda
