// Device and pinned memory that frees itself, and an arena for what a model has many of.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>

#include "cluster/base/status.h"
#include "worker/device/cuda/cuda_context.h"

namespace kvern::inline KVERN_GPU_BUILD {

// A piece of device memory; movable. Pieces of one cudaMalloc share it.
class DeviceMemory {
 public:
  DeviceMemory() = default;

  // ResourceExhausted naming the bytes and what is free. The content is anything.
  static absl::StatusOr<DeviceMemory> Allocate(const CudaContext& context, size_t bytes);

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }  // as asked, rounded up to the alignment

 private:
  friend class DeviceArena;

  std::shared_ptr<void> owner_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

// Lays small pieces side by side in large allocations: cudaMalloc gives whole megabytes, and a
// model has thousands of vectors. The pieces may outlive the arena. One thread.
class DeviceArena {
 public:
  explicit DeviceArena(const CudaContext& context) : context_(context) {}

  // Aligned to 256 bytes.
  absl::StatusOr<DeviceMemory> Allocate(size_t bytes);

 private:
  const CudaContext& context_;
  DeviceMemory chunk_;
  size_t used_ = 0;  // bytes of chunk_
};

// Host memory that the GPU copies from and to by itself.
class PinnedMemory {
 public:
  PinnedMemory() = default;
  static absl::StatusOr<PinnedMemory> Allocate(const CudaContext& context, size_t bytes);

  std::byte* data() const { return static_cast<std::byte*>(owner_.get()); }
  size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<void> owner_;
  size_t bytes_ = 0;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
