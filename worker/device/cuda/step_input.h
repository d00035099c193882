// What a step sends to the GPU, in two slots of pinned and of device memory that are used in turn.
#pragma once

#include <array>
#include <memory>

#include "worker/device/cuda/cuda_memory.h"

namespace kvern::inline KVERN_GPU_BUILD {

// While the GPU still reads one slot, the host writes the other and it is copied: Begin, write to
// host(), Send, Sent, then enqueue what reads device(). Belongs to the rank's thread; errors are
// kept by the context.
class StepInput {
 public:
  static constexpr int kSlots = 2;

  static absl::StatusOr<std::unique_ptr<StepInput>> Create(CudaContext& context, DeviceArena& arena,
                                                           size_t bytes);
  ~StepInput();

  // Turns to the other slot. What has been enqueued until now may read this one, nothing that
  // comes later. Waits until the other's pinned memory may be written again; returns the context's
  // status.
  absl::Status Begin();
  // Before anything is enqueued that reads the slot: waits until its pinned memory may be written
  // once more.
  absl::Status Again() { return context_.WaitFor(current().sent.get()); }
  std::byte* host() const { return current().host.data(); }
  // Copies bytes [begin, begin + bytes) of the slot.
  void Send(size_t begin, size_t bytes);
  // What is computed from now on sees what was sent.
  void Sent();
  const char* device() const { return static_cast<const char*>(current().memory.data()); }

  int slot() const { return slot_; }
  size_t slot_bytes() const { return slot_bytes_; }
  size_t bytes() const { return kSlots * slots_[0].memory.bytes(); }  // of device memory

 private:
  struct Slot {
    PinnedMemory host;
    DeviceMemory memory;
    CudaEvent sent;  // the copies out of its pinned memory
    CudaEvent read;  // its device memory, for the last time
  };

  explicit StepInput(CudaContext& context) : context_(context) {}
  Slot& current() { return slots_[static_cast<size_t>(slot_)]; }
  const Slot& current() const { return slots_[static_cast<size_t>(slot_)]; }

  CudaContext& context_;
  size_t slot_bytes_ = 0;
  std::array<Slot, kSlots> slots_;
  int slot_ = 0;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
