#include "worker/device/cuda/staged_copies.h"

#include <algorithm>
#include <cstring>

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

// Long enough that starting a copy costs little beside it, short enough that a thread's two slots
// stay in its cache.
constexpr size_t kPieceBytes = 1 << 20;
constexpr int kMaxSlots = 32;

}  // namespace

absl::StatusOr<std::unique_ptr<StagedCopies>> StagedCopies::Create(CudaContext& context,
                                                                   int threads) {
  std::unique_ptr<StagedCopies> made(new StagedCopies(context));
  // Two for each thread: it writes one while the other is copied.
  const auto slots = static_cast<size_t>(std::clamp(2 * threads, 2, kMaxSlots));
  KVERN_ASSIGN_OR_RETURN(made->memory_, PinnedMemory::Allocate(context, slots * kPieceBytes));
  for (size_t i = 0; i < slots; ++i) {
    KVERN_ASSIGN_OR_RETURN(CudaEvent copied, NewCudaEvent());
    made->slots_.push_back({made->memory_.data() + i * kPieceBytes, std::move(copied)});
  }
  for (Slot& slot : made->slots_) made->free_.push_back(&slot);
  return made;
}

StagedCopies::~StagedCopies() { context_.Drain(); }  // copies still read the pinned memory

StagedCopies::Slot* StagedCopies::Take() {
  std::unique_lock lock(mutex_);
  given_.wait(lock, [this] { return !free_.empty(); });
  Slot* slot = free_.front();
  free_.pop_front();
  return slot;
}

void StagedCopies::Give(Slot* slot) {
  const std::lock_guard lock(mutex_);
  free_.push_back(slot);
  given_.notify_one();
}

absl::Status StagedCopies::Load(void* target, size_t bytes, const Fill& fill) {
  context_.Enter();
  // While weights are loaded nothing waits for other ranks: this wait ends.
  return Upload(target, bytes, fill, [](cudaEvent_t copied) {
    return CudaStatus(cudaEventSynchronize(copied), "copying weights");
  });
}

absl::Status StagedCopies::ToDevice(void* target, const void* source, size_t bytes) {
  context_.Enter();
  context_.CopyAfterCompute();  // it may still use the target
  const auto fill = [source](size_t offset, std::span<std::byte> out) {
    std::memcpy(out.data(), static_cast<const std::byte*>(source) + offset, out.size());
  };
  context_.Fail(
      Upload(target, bytes, fill, [this](cudaEvent_t copied) { return context_.WaitFor(copied); }));
  return context_.status();
}

absl::Status StagedCopies::Upload(void* target, size_t bytes, const Fill& fill,
                                  const Await& await) {
  for (size_t done = 0; done < bytes; done += kPieceBytes) {
    const size_t count = std::min(kPieceBytes, bytes - done);
    Slot* slot = Take();
    absl::Status status = await(slot->copied.get());
    if (status.ok()) {
      fill(done, {slot->memory, count});
      status = Send(*slot, static_cast<char*>(target) + done, count);
    }
    Give(slot);
    KVERN_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

absl::Status StagedCopies::Send(const Slot& slot, void* target, size_t bytes) {
  cudaStream_t stream = context_.copy_stream();
  KVERN_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(target, slot.memory, bytes, cudaMemcpyHostToDevice, stream),
                 "copying to the GPU"));
  KVERN_RETURN_IF_ERROR(CudaStatus(cudaEventRecord(slot.copied.get(), stream), "cudaEventRecord"));
  return CudaStatus(cudaStreamWaitEvent(context_.stream(), slot.copied.get(), 0),
                    "cudaStreamWaitEvent");
}

absl::Status StagedCopies::ToHost(void* target, const void* source, size_t bytes) {
  context_.Enter();
  context_.CopyAfterCompute();
  for (size_t done = 0; done < bytes && context_.status().ok(); done += kPieceBytes) {
    Slot* slot = Take();
    context_.Fail(Fetch(*slot, static_cast<char*>(target) + done,
                        static_cast<const char*>(source) + done,
                        std::min(kPieceBytes, bytes - done)));
    Give(slot);
  }
  return context_.status();
}

absl::Status StagedCopies::Fetch(const Slot& slot, void* target, const void* source, size_t bytes) {
  // What was sent from this slot goes first: both are copies of one stream.
  KVERN_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(slot.memory, source, bytes, cudaMemcpyDeviceToHost, context_.copy_stream()),
      "copying from the GPU"));
  KVERN_RETURN_IF_ERROR(context_.WaitForCopies());
  std::memcpy(target, slot.memory, bytes);
  return absl::OkStatus();
}

}  // namespace kvern::inline KVERN_GPU_BUILD
