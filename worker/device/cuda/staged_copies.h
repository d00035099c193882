// Copies between any host memory and the GPU, through pinned memory on the copy stream.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "worker/device/cuda/cuda_memory.h"

namespace kvern::inline KVERN_GPU_BUILD {

// A copy is cut into pieces; while one is under way the next is written to another slot of pinned
// memory. What is computed from the call on sees what was copied to the GPU.
class StagedCopies {
 public:
  // `threads`: how many may load at once.
  static absl::StatusOr<std::unique_ptr<StagedCopies>> Create(CudaContext& context, int threads);
  ~StagedCopies();

  // Writes bytes [offset, offset + out.size()) of what is copied; offset is a multiple of 256.
  using Fill = std::function<void(size_t offset, std::span<std::byte> out)>;
  // For loading, from any thread: nothing else uses `target` yet.
  absl::Status Load(void* target, size_t bytes, const Fill& fill);

  // The rank's thread. In order with what is computed; errors are final, like all of the context's.
  absl::Status ToDevice(void* target, const void* source, size_t bytes);
  // The bytes are there on return.
  absl::Status ToHost(void* target, const void* source, size_t bytes);

 private:
  struct Slot {
    std::byte* memory = nullptr;
    CudaEvent copied;
  };
  using Await = std::function<absl::Status(cudaEvent_t)>;

  explicit StagedCopies(CudaContext& context) : context_(context) {}
  Slot* Take();
  void Give(Slot* slot);
  absl::Status Upload(void* target, size_t bytes, const Fill& fill, const Await& await);
  absl::Status Send(const Slot& slot, void* target, size_t bytes);
  absl::Status Fetch(const Slot& slot, void* target, const void* source, size_t bytes);

  CudaContext& context_;
  PinnedMemory memory_;
  std::vector<Slot> slots_;
  std::mutex mutex_;
  std::condition_variable given_;
  std::deque<Slot*> free_;  // the one whose copy is oldest first
};

}  // namespace kvern::inline KVERN_GPU_BUILD
