// What the stand-in runtime knows: devices, their memory and errors, and which threads capture.
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <mutex>
#include <set>

namespace kvern::simt {

inline constexpr int kMaxDevices = 64;
inline constexpr size_t kDefaultDynamicShared = 48 << 10;
inline constexpr size_t kMaxDynamicShared = 163 << 10;  // of an sm_80 block

struct DeviceState {
  std::atomic<cudaError_t> broken{cudaSuccess};
  std::mutex mutex;
  std::map<const char*, size_t> allocations;  // by address
  size_t used = 0;                            // bytes
  size_t mallocs = 0;                         // calls that gave memory, so far
  size_t malloc_bytes = 0;                    // that they gave
  int late_stream = -1;                       // this many more streams until a late one
  bool always_splits = false;                 // by AlwaysSplitProducts
  bool aborts_held = false;                   // by HoldAborts
  int aborts_begun = 0;
  int aborts_ended = 0;
  std::condition_variable abort_let_go;
};

// REQUIRES: 0 <= device < kMaxDevices.
DeviceState& Device(int device);
// KVERN_EMULATED_DEVICES, 8 without it.
int DeviceCount();
// KVERN_EMULATED_MEMORY (bytes of one device), the machine's memory without it.
size_t DeviceBytes();
// Of the calling thread.
int CurrentDevice();
// Whether the stream that is being made is the one of MakeStreamLate.
bool NextStreamIsLate(int device);
// Whether AlwaysSplitProducts is on.
bool AlwaysSplitsProducts(int device);

// True when [address, address + bytes) lies within one allocation of some device.
bool IsDeviceMemory(const void* address, size_t bytes);
// True when `address` lies within memory of cudaMallocHost.
bool IsPinned(const void* address);

// What an API call answers: the error of a broken device before anything else. Notes the last
// error.
cudaError_t Answer(cudaError_t error);
// The error of the calling thread's device.
cudaError_t Broken();

}  // namespace kvern::simt
