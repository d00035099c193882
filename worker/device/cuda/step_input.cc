#include "worker/device/cuda/step_input.h"

#include "cluster/base/check.h"

namespace kvern::inline KVERN_GPU_BUILD {

absl::StatusOr<std::unique_ptr<StepInput>> StepInput::Create(CudaContext& context,
                                                             DeviceArena& arena, size_t bytes) {
  std::unique_ptr<StepInput> made(new StepInput(context));
  made->slot_bytes_ = bytes;
  for (Slot& slot : made->slots_) {
    KVERN_ASSIGN_OR_RETURN(slot.host, PinnedMemory::Allocate(context, bytes));
    KVERN_ASSIGN_OR_RETURN(slot.memory, arena.LayOut(bytes));
    KVERN_ASSIGN_OR_RETURN(slot.sent, NewCudaEvent());
    KVERN_ASSIGN_OR_RETURN(slot.read, NewCudaEvent());
  }
  return made;
}

StepInput::~StepInput() { context_.Drain(); }  // copies still read the pinned memory

absl::Status StepInput::Begin() {
  context_.Check(cudaEventRecord(current().read.get(), context_.stream()), "cudaEventRecord");
  slot_ = (slot_ + 1) % kSlots;
  KVERN_RETURN_IF_ERROR(context_.WaitFor(current().sent.get()));
  context_.Check(cudaStreamWaitEvent(context_.copy_stream(), current().read.get(), 0),
                 "cudaStreamWaitEvent");
  return context_.status();
}

void StepInput::Send(size_t begin, size_t bytes) {
  KVERN_CHECK_LE(begin + bytes, slot_bytes_);
  if (bytes == 0) return;
  context_.Check(
      cudaMemcpyAsync(static_cast<char*>(current().memory.data()) + begin, host() + begin, bytes,
                      cudaMemcpyHostToDevice, context_.copy_stream()),
      "copying a step's input");
}

void StepInput::Sent() {
  context_.Check(cudaEventRecord(current().sent.get(), context_.copy_stream()), "cudaEventRecord");
  context_.Check(cudaStreamWaitEvent(context_.stream(), current().sent.get(), 0),
                 "cudaStreamWaitEvent");
}

}  // namespace kvern::inline KVERN_GPU_BUILD
