// Device memory out of one allocation, and pinned host memory.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "cluster/base/status.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/cuda/memory_guard.h"

namespace kvern::inline KVERN_GPU_BUILD {

// A piece of an arena. It has an address once the arena's Commit has succeeded; the last piece of
// an allocation to go frees it.
class DeviceMemory {
 public:
  DeviceMemory() = default;

  // REQUIRES: committed. Null for no piece.
  void* data() const;
  size_t size() const { return size_; }  // as asked: what may be used
  size_t bytes() const {
    return bytes_;
  }  // as allocated: rounded up to the alignment, with its guard

 private:
  friend class DeviceArena;
  struct Allocation;

  std::shared_ptr<Allocation> allocation_;
  size_t offset_ = 0;
  size_t size_ = 0;
  size_t bytes_ = 0;
};

// Pieces are laid out side by side first and allocated together: what they add up to is what is
// allocated. What a piece has beyond what was asked for is forbidden (memory_guard.h). One thread.
class DeviceArena {
 public:
  enum class Content { kAnything, kZero };
  static constexpr size_t kAlignment = 256;  // what a GPU's loads and products want

  explicit DeviceArena(CudaContext& context) : context_(context) {}

  // A piece that begins at a multiple of kAlignment. Its last `closed` bytes are forbidden until
  // somebody allows them. ResourceExhausted for sizes beyond 64 bits.
  absl::StatusOr<DeviceMemory> LayOut(size_t bytes, Content content = Content::kAnything,
                                      size_t closed = 0);
  // Allocates all that was laid out since the last call, in one piece. ResourceExhausted naming the
  // bytes and what is free: those pieces will never have an address.
  absl::Status Commit();
  // Of pieces without an address.
  size_t laid_out_bytes() const { return bytes_; }

 private:
  CudaContext& context_;
  std::shared_ptr<DeviceMemory::Allocation> next_;
  size_t bytes_ = 0;  // of next_
  struct Piece {
    size_t begin = 0;
    size_t open = 0;  // bytes that may be touched
    size_t end = 0;
    Content content = Content::kAnything;
  };
  std::vector<Piece> pieces_;  // of next_
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
