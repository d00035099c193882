#include "kernels/simt/runtime/stream.h"

#include <algorithm>
#include <utility>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/state.h"

namespace kvern::simt {
namespace {

// The streams of one device. Never destroyed: threads may be busy when the process ends.
struct StreamList {
  std::mutex mutex;
  std::vector<cudaStream_t> streams;
};

StreamList& StreamsOf(int device) {
  static auto* const lists = new StreamList[kMaxDevices];
  return lists[device];
}

}  // namespace
}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

using kvern::simt::Answer;
using kvern::simt::Resolve;
using kvern::simt::StreamPlace;

CUstream_st::CUstream_st(int of_device, bool late)
    : device_(of_device), late_(late), thread_([this] { Run(); }) {
  auto& list = kvern::simt::StreamsOf(device_);
  const std::lock_guard lock(list.mutex);
  list.streams.push_back(this);
}

CUstream_st::~CUstream_st() {
  {
    auto& list = kvern::simt::StreamsOf(device_);
    const std::lock_guard lock(list.mutex);
    std::erase(list.streams, this);
  }
  {
    const std::lock_guard lock(gate_->mutex);
    stop_ = true;
    gate_->changed.notify_all();
  }
  thread_.join();
}

StreamPlace CUstream_st::Push(kvern::simt::Task task, bool always) {
  const std::lock_guard lock(gate_->mutex);
  queue_.push_back({std::move(task), always});
  ++pushed_;
  gate_->changed.notify_all();
  return {gate_, pushed_};
}

void CUstream_st::Synchronize() {
  std::unique_lock lock(gate_->mutex);
  const uint64_t all = pushed_;
  gate_->wanted = std::max(gate_->wanted, all);
  gate_->changed.notify_all();
  gate_->changed.wait(lock, [&] { return done_ >= all; });
}

bool CUstream_st::Idle() {
  const std::lock_guard lock(gate_->mutex);
  gate_->wanted = pushed_;
  gate_->changed.notify_all();
  return done_ == pushed_;
}

void CUstream_st::Run() {
  while (true) {
    Item item;
    {
      std::unique_lock lock(gate_->mutex);
      gate_->changed.wait(
          lock, [this] { return stop_ || (!queue_.empty() && (!late_ || done_ < gate_->wanted)); });
      if (queue_.empty()) return;
      item = std::move(queue_.front());
      queue_.pop_front();
    }
    const bool broken = kvern::simt::Device(device_).broken.load() != cudaSuccess;
    if (item.always || !broken) item.task();
    item.task = nullptr;  // what it captured goes before the stream says that it is done
    const std::lock_guard lock(gate_->mutex);
    ++done_;
    gate_->changed.notify_all();
  }
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  if (flags != cudaStreamNonBlocking) return Answer(cudaErrorNotSupported);
  if (kvern::simt::DeviceCount() == 0) return Answer(cudaErrorNoDevice);
  const cudaError_t error = Answer(cudaSuccess);
  if (error != cudaSuccess) return error;
  const int device = kvern::simt::CurrentDevice();
  *stream = new CUstream_st(device, kvern::simt::NextStreamIsLate(device));
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (stream == nullptr) return Answer(cudaErrorInvalidResourceHandle);
  if (kvern::simt::InvalidateCapture(stream)) return Answer(cudaErrorStreamCaptureUnsupported);
  delete stream;
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream = Resolve(stream);
  if (kvern::simt::InvalidateCapture(stream)) return Answer(cudaErrorStreamCaptureUnsupported);
  stream->Synchronize();
  return Answer(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
  stream = Resolve(stream);
  if (kvern::simt::InvalidateCapture(stream)) return Answer(cudaErrorStreamCaptureUnsupported);
  return Answer(stream->Idle() ? cudaSuccess : cudaErrorNotReady);
}

}  // namespace kvern_emulated_cuda

namespace kvern::simt {

cudaStream_t Resolve(cudaStream_t stream) {
  if (stream != nullptr) return stream;
  // Never destroyed: their threads may be busy when the process ends.
  static std::mutex mutex;
  static auto* const streams = new std::vector<cudaStream_t>(kMaxDevices);
  const std::lock_guard lock(mutex);
  cudaStream_t& own = (*streams)[static_cast<size_t>(CurrentDevice())];
  if (own == nullptr) own = new CUstream_st(CurrentDevice());
  return own;
}

namespace {

cudaError_t Enqueue(cudaStream_t stream, Task task, bool always, StreamPlace* place) {
  stream = Resolve(stream);
  const cudaError_t error = Answer(Device(stream->device()).broken.load());
  if (error != cudaSuccess) return error;
  const cudaError_t recorded = Record(stream, task);
  if (recorded != cudaErrorNotReady) return Answer(recorded);
  *place = stream->Push(std::move(task), always);
  return cudaSuccess;
}

}  // namespace

cudaError_t EnqueueTask(cudaStream_t stream, Task task) {
  stream = Resolve(stream);
  if (stream->device() != CurrentDevice()) return Answer(cudaErrorInvalidResourceHandle);
  return EnqueueFromAnyDevice(stream, std::move(task));
}

cudaError_t EnqueueFromAnyDevice(cudaStream_t stream, Task task) {
  StreamPlace place;
  return Enqueue(stream, std::move(task), false, &place);
}

cudaError_t EnqueueSignal(cudaStream_t stream, Task task, StreamPlace* place) {
  return Enqueue(stream, std::move(task), true, place);
}

void StreamGate::Want(uint64_t items) {
  const std::lock_guard lock(mutex);
  wanted = std::max(wanted, items);
  changed.notify_all();
}

void SynchronizeDevice(int device) {
  StreamList& list = StreamsOf(device);
  const std::lock_guard lock(list.mutex);  // nobody destroys one meanwhile
  for (cudaStream_t stream : list.streams) stream->Synchronize();
}

}  // namespace kvern::simt
