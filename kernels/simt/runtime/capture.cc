// Stream capture and graphs. A graph is the list of what the stream was given, in that order: one
// of the orders that its dependencies allow.
#include <algorithm>
#include <utility>

#include "kernels/simt/runtime/enqueue.h"
#include "kernels/simt/runtime/state.h"
#include "kernels/simt/runtime/stream.h"

inline namespace kvern_emulated_cuda {

struct CUgraph_st {
  std::vector<kvern::simt::Task> tasks;
  kvern::simt::Held held;
};

struct CUgraphExec_st {
  // Shared with the launches in flight.
  std::shared_ptr<const std::vector<kvern::simt::Task>> tasks;
  kvern::simt::Held held;
};

}  // namespace kvern_emulated_cuda

namespace kvern::simt {
namespace {

std::mutex& CapturesMutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

std::vector<std::unique_ptr<Capture>>& Captures() {
  static auto* const captures = new std::vector<std::unique_ptr<Capture>>;
  return *captures;
}

// REQUIRES: the lock.
Capture* FindCapture(cudaStream_t stream) {
  for (const auto& capture : Captures()) {
    if (capture->stream == stream) return capture.get();
  }
  return nullptr;
}

}  // namespace

bool AllowedDuringCapture() {
  const std::lock_guard lock(CapturesMutex());
  bool allowed = true;
  for (const auto& capture : Captures()) {
    const bool hit = capture->mode == cudaStreamCaptureModeGlobal ||
                     (capture->mode == cudaStreamCaptureModeThreadLocal &&
                      capture->owner == std::this_thread::get_id());
    capture->invalidated = capture->invalidated || hit;
    allowed = allowed && !hit;
  }
  return allowed;
}

bool InvalidateCapture(cudaStream_t stream) {
  const std::lock_guard lock(CapturesMutex());
  Capture* capture = FindCapture(stream);
  if (capture != nullptr) capture->invalidated = true;
  return capture != nullptr;
}

bool IsCapturing(cudaStream_t stream) {
  const std::lock_guard lock(CapturesMutex());
  return FindCapture(stream) != nullptr;
}

void HoldInGraph(cudaStream_t stream, std::shared_ptr<const void> object) {
  const std::lock_guard lock(CapturesMutex());
  Capture* capture = FindCapture(stream);
  if (capture != nullptr) capture->held.push_back(std::move(object));
}

cudaError_t Record(cudaStream_t stream, Task& task) {
  const std::lock_guard lock(CapturesMutex());
  Capture* capture = FindCapture(stream);
  if (capture == nullptr) return cudaErrorNotReady;
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  capture->tasks.push_back(std::move(task));
  return cudaSuccess;
}

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

using kvern::simt::Answer;

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  // The legacy stream cannot be captured.
  if (stream == nullptr) return Answer(cudaErrorStreamCaptureUnsupported);
  const std::lock_guard lock(kvern::simt::CapturesMutex());
  if (kvern::simt::FindCapture(stream) != nullptr) return Answer(cudaErrorIllegalState);
  const cudaError_t error = Answer(cudaSuccess);
  if (error != cudaSuccess) return error;
  auto capture = std::make_unique<kvern::simt::Capture>();
  capture->stream = stream;
  capture->mode = mode;
  capture->owner = std::this_thread::get_id();
  kvern::simt::Captures().push_back(std::move(capture));
  return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  const std::lock_guard lock(kvern::simt::CapturesMutex());
  kvern::simt::Capture* capture = kvern::simt::FindCapture(stream);
  if (capture == nullptr) return Answer(cudaErrorIllegalState);
  if (capture->mode != cudaStreamCaptureModeRelaxed &&
      capture->owner != std::this_thread::get_id()) {
    return Answer(cudaErrorStreamCaptureWrongThread);
  }
  const bool invalidated = capture->invalidated;
  auto made = std::make_unique<CUgraph_st>();
  made->tasks = std::move(capture->tasks);
  made->held = std::move(capture->held);
  std::erase_if(kvern::simt::Captures(), [&](const auto& c) { return c.get() == capture; });
  if (invalidated) return Answer(cudaErrorStreamCaptureInvalidated);
  const cudaError_t error = Answer(cudaSuccess);
  if (error == cudaSuccess) *graph = made.release();
  return error;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const std::lock_guard lock(kvern::simt::CapturesMutex());
  const kvern::simt::Capture* capture = kvern::simt::FindCapture(stream);
  *status = capture == nullptr     ? cudaStreamCaptureStatusNone
            : capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                   : cudaStreamCaptureStatusActive;
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (graph == nullptr || flags != 0) return Answer(cudaErrorInvalidValue);
  const cudaError_t error = Answer(cudaSuccess);
  if (error != cudaSuccess) return error;
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<kvern::simt::Task>>(graph->tasks),
                             graph->held};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (exec == nullptr) return Answer(cudaErrorInvalidValue);
  return kvern::simt::EnqueueTask(stream, [tasks = exec->tasks] {
    for (const kvern::simt::Task& task : *tasks) task();
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Answer(cudaSuccess);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return Answer(cudaSuccess);
}

}  // namespace kvern_emulated_cuda
