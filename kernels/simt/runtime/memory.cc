// Device memory is host memory that only streams may touch; pinned memory is known, so that copies
// behave as the real ones do with it and without it.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/state.h"
#include "kernels/simt/runtime/stream.h"

namespace kvern::simt {
namespace {

constexpr size_t kAlignment = 512;  // of cudaMalloc's pointers; 256 is promised
// What a new allocation holds is not zero on a device either: NaN, as far as it is worth the time.
constexpr size_t kPoisonBytes = 64 << 20;

struct PinnedMemory {
  std::mutex mutex;
  std::map<const char*, size_t> ranges;
};

PinnedMemory& Pinned() {
  static auto* const pinned = new PinnedMemory;
  return *pinned;
}

// Not std::aligned_alloc, whose sizes are whole multiples of the alignment: AddressSanitizer would
// take what is added for memory that was asked for.
char* NewMemory(size_t bytes) {
  void* memory = nullptr;
  if (bytes > SIZE_MAX / 2 || posix_memalign(&memory, kAlignment, bytes) != 0) return nullptr;
  std::memset(memory, 0xff, std::min(bytes, kPoisonBytes));
  return static_cast<char*>(memory);
}

// Whether the two ends of a copy are where `kind` says.
bool FitsKind(const void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (bytes == 0 || kind == cudaMemcpyDefault) return true;
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return IsDeviceMemory(target, bytes) == to_device && IsDeviceMemory(source, bytes) == from_device;
}

}  // namespace

bool IsPinned(const void* address) {
  const auto* at = static_cast<const char*>(address);
  PinnedMemory& pinned = Pinned();
  const std::lock_guard lock(pinned.mutex);
  auto after = pinned.ranges.upper_bound(at);
  if (after == pinned.ranges.begin()) return false;
  const auto& [begin, size] = *std::prev(after);
  return static_cast<size_t>(at - begin) < size;
}

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

using kvern::simt::AllowedDuringCapture;
using kvern::simt::Answer;
using kvern::simt::EnqueueFromAnyDevice;
using kvern::simt::EnqueueTask;

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (kvern::simt::DeviceCount() == 0) return Answer(cudaErrorNoDevice);
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = Answer(cudaSuccess);
  if (error != cudaSuccess || bytes == 0) return error;
  auto& device = kvern::simt::Device(kvern::simt::CurrentDevice());
  const std::lock_guard lock(device.mutex);
  const size_t total = kvern::simt::DeviceBytes();
  if (device.used > total || bytes > total - device.used) return Answer(cudaErrorMemoryAllocation);
  char* memory = kvern::simt::NewMemory(bytes);
  if (memory == nullptr) return Answer(cudaErrorMemoryAllocation);
  device.allocations[memory] = bytes;
  device.used += bytes;
  ++device.mallocs;
  device.malloc_bytes += bytes;
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t cudaFree(void* pointer) {
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  if (pointer == nullptr) return Answer(cudaSuccess);
  // As the real one: whatever may still use the memory has ended when this returns.
  kvern::simt::SynchronizeDevice(kvern::simt::CurrentDevice());
  for (int d = 0; d < kvern::simt::kMaxDevices; ++d) {
    auto& device = kvern::simt::Device(d);
    const std::lock_guard lock(device.mutex);
    auto found = device.allocations.find(static_cast<const char*>(pointer));
    if (found == device.allocations.end()) continue;
    device.used -= found->second;
    device.allocations.erase(found);
    std::free(pointer);
    return Answer(cudaSuccess);
  }
  return Answer(cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
  *pointer = nullptr;
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = Answer(cudaSuccess);
  if (error != cudaSuccess || bytes == 0) return error;
  char* memory = kvern::simt::NewMemory(bytes);
  if (memory == nullptr) return Answer(cudaErrorMemoryAllocation);
  auto& pinned = kvern::simt::Pinned();
  const std::lock_guard lock(pinned.mutex);
  pinned.ranges[memory] = bytes;
  *pointer = memory;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* pointer) {
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  if (pointer == nullptr) return Answer(cudaSuccess);
  auto& pinned = kvern::simt::Pinned();
  const std::lock_guard lock(pinned.mutex);
  if (pinned.ranges.erase(static_cast<const char*>(pointer)) == 0) {
    return Answer(cudaErrorInvalidValue);
  }
  std::free(pointer);
  return Answer(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  if (kvern::simt::DeviceCount() == 0) return Answer(cudaErrorNoDevice);
  auto& device = kvern::simt::Device(kvern::simt::CurrentDevice());
  const std::lock_guard lock(device.mutex);
  *total_bytes = kvern::simt::DeviceBytes();
  *free_bytes = *total_bytes - std::min(device.used, *total_bytes);
  return Answer(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!kvern::simt::FitsKind(target, source, bytes, kind)) return Answer(cudaErrorInvalidValue);
  stream = kvern::simt::Resolve(stream);
  const auto copy = [=] { std::memcpy(target, source, bytes); };
  if (bytes == 0) return Answer(cudaSuccess);
  const bool captured = kvern::simt::IsCapturing(stream);
  if (kind == cudaMemcpyHostToDevice && !captured && !kvern::simt::IsPinned(source)) {
    // Pageable memory is staged before the call returns.
    const auto* from = static_cast<const char*>(source);
    auto staged = std::make_shared<const std::vector<char>>(from, from + bytes);
    return EnqueueFromAnyDevice(stream, [=] { std::memcpy(target, staged->data(), bytes); });
  }
  const cudaError_t error = EnqueueFromAnyDevice(stream, copy);
  const bool waits = kind == cudaMemcpyDeviceToHost && !captured && !kvern::simt::IsPinned(target);
  if (error == cudaSuccess && waits) return cudaStreamSynchronize(stream);
  return error;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t bytes, cudaStream_t stream) {
  if (bytes > 0 && !kvern::simt::IsDeviceMemory(target, bytes)) {
    return Answer(cudaErrorInvalidValue);
  }
  return EnqueueTask(stream, [=] {
    if (bytes > 0) std::memset(target, value, bytes);
  });
}

cudaError_t cudaMemcpy(void* target, const void* source, size_t bytes, cudaMemcpyKind kind) {
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = cudaMemcpyAsync(target, source, bytes, kind, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaMemset(void* target, int value, size_t bytes) {
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  const cudaError_t error = cudaMemsetAsync(target, value, bytes, nullptr);
  return error == cudaSuccess ? cudaStreamSynchronize(nullptr) : error;
}

cudaError_t cudaDeviceSynchronize() {
  if (!AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  kvern::simt::SynchronizeDevice(kvern::simt::CurrentDevice());
  return Answer(cudaSuccess);
}

}  // namespace kvern_emulated_cuda
