#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/state.h"
#include "kernels/simt/runtime/stream.h"

namespace kvern::simt {
namespace {

// Lives as long as a stream still has to signal it, like a real event that was destroyed early.
struct EventState {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t recorded = 0;   // records so far
  uint64_t completed = 0;  // the newest of them that its stream has reached
  bool captured = false;   // the newest record is a graph's
  StreamPlace place;       // of the newest record
};

// Somebody waits for the newest record: a stream that works late has to go on.
void Want(EventState& state) {
  StreamPlace place;
  {
    const std::lock_guard lock(state.mutex);
    place = state.place;
  }
  if (place.gate != nullptr) place.gate->Want(place.items);
}

void Complete(EventState& state, uint64_t record) {
  const std::lock_guard lock(state.mutex);
  state.completed = std::max(state.completed, record);
  state.changed.notify_all();
}

void WaitFor(EventState& state, uint64_t record) {
  std::unique_lock lock(state.mutex);
  state.changed.wait(lock, [&] { return state.completed >= record; });
}

}  // namespace
}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

using kvern::simt::Answer;

struct CUevent_st {
  int device = 0;
  std::shared_ptr<kvern::simt::EventState> state = std::make_shared<kvern::simt::EventState>();
};

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  if (flags != cudaEventDisableTiming) return Answer(cudaErrorNotSupported);
  const cudaError_t error = Answer(cudaSuccess);
  if (error == cudaSuccess) *event = new CUevent_st{kvern::simt::CurrentDevice()};
  return error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  delete event;
  return Answer(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  stream = kvern::simt::Resolve(stream);
  // CUDA Programming Guide, "Stream and Event Behavior"; which device is current does not matter.
  if (event->device != stream->device()) return Answer(cudaErrorInvalidResourceHandle);
  uint64_t record = 0;
  {
    const std::lock_guard lock(event->state->mutex);
    event->state->captured = kvern::simt::IsCapturing(stream);
    if (event->state->captured) return Answer(cudaSuccess);  // nothing in this stream waits for it
    record = ++event->state->recorded;
  }
  kvern::simt::StreamPlace place;
  const cudaError_t error = kvern::simt::EnqueueSignal(
      stream, [state = event->state, record] { kvern::simt::Complete(*state, record); }, &place);
  const std::lock_guard lock(event->state->mutex);
  if (error == cudaSuccess) {
    event->state->place = std::move(place);
  } else {
    --event->state->recorded;  // nobody will signal it
  }
  return error;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (flags != 0) return Answer(cudaErrorInvalidValue);
  stream = kvern::simt::Resolve(stream);
  const bool capturing = kvern::simt::IsCapturing(stream);
  uint64_t record = 0;
  kvern::simt::StreamPlace place;
  {
    const std::lock_guard lock(event->state->mutex);
    // The real library lets another stream join a capture in this way; nothing here needs it.
    if (event->state->captured)
      return capturing ? Answer(cudaSuccess) : Answer(cudaErrorNotSupported);
    record = event->state->recorded;
    place = event->state->place;
  }
  if (capturing && record > 0) {
    kvern::simt::InvalidateCapture(stream);
    return Answer(cudaErrorStreamCaptureIsolation);
  }
  return kvern::simt::EnqueueFromAnyDevice(stream, [state = event->state, record, place] {
    if (place.gate != nullptr) place.gate->Want(place.items);
    kvern::simt::WaitFor(*state, record);
  });
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (!kvern::simt::AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  kvern::simt::Want(*event->state);
  const std::lock_guard lock(event->state->mutex);
  if (event->state->captured) return Answer(cudaErrorCapturedEvent);
  return Answer(event->state->completed >= event->state->recorded ? cudaSuccess
                                                                  : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (!kvern::simt::AllowedDuringCapture()) return Answer(cudaErrorStreamCaptureUnsupported);
  uint64_t record = 0;
  {
    const std::lock_guard lock(event->state->mutex);
    if (event->state->captured) return Answer(cudaErrorCapturedEvent);
    record = event->state->recorded;
  }
  kvern::simt::Want(*event->state);
  if (kvern::simt::Broken() == cudaSuccess) kvern::simt::WaitFor(*event->state, record);
  return Answer(cudaSuccess);
}

}  // namespace kvern_emulated_cuda
