// Streams as queues with a thread each, and what a capturing stream records.
#pragma once

#include <cuda_runtime.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace kvern::simt {

using Task = std::function<void()>;
// What a graph holds of somebody's as long as it exists, as a user object of CUDA's.
using Held = std::vector<std::shared_ptr<const void>>;

// One capture, from BeginCapture to EndCapture. Guarded by the lock of capture.cc.
struct Capture {
  cudaStream_t stream = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id owner;
  bool invalidated = false;
  std::vector<Task> tasks;
  Held held;
};

// An operation that must not run while a stream captures: false, and the captures it hits are
// spoiled, when one forbids it to this thread (a global capture anywhere, or a thread-local one of
// this thread's).
bool AllowedDuringCapture();
// Spoils the capture of `stream` if there is one; true if there was.
bool InvalidateCapture(cudaStream_t stream);
// Records `task` if `stream` captures. cudaErrorNotReady: it does not, the task is untouched.
cudaError_t Record(cudaStream_t stream, Task& task);
bool IsCapturing(cudaStream_t stream);
// If `stream` captures, the graph and all that is made from it hold `object` until they are
// destroyed.
void HoldInGraph(cudaStream_t stream, std::shared_ptr<const void> object);

// The stream meant by a handle: null is a queue of the calling thread's device.
cudaStream_t Resolve(cudaStream_t stream);

// How far the work of a stream is asked for. Lives as long as an event that was recorded in it.
struct StreamGate {
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t wanted = 0;  // somebody waits for the first so many items

  void Want(uint64_t items);
};

// A place in a stream: behind its first `items` items.
struct StreamPlace {
  std::shared_ptr<StreamGate> gate;
  uint64_t items = 0;
};

// As EnqueueTask, for what may be asked for while another device is the calling thread's: copies
// and waits (CUDA Programming Guide, "Stream and Event Behavior").
cudaError_t EnqueueFromAnyDevice(cudaStream_t stream, Task task);

// As EnqueueFromAnyDevice, for signals that must come even from a broken device: those who wait are
// told of the fault after it. `place`: right behind the signal, unless it was captured.
cudaError_t EnqueueSignal(cudaStream_t stream, Task task, StreamPlace* place);

// Waits for all streams of a device.
void SynchronizeDevice(int device);

}  // namespace kvern::simt

inline namespace kvern_emulated_cuda {

struct CUstream_st {
 public:
  // `late`: it does nothing before somebody waits for it.
  explicit CUstream_st(int of_device, bool late = false);
  // Waits for what is queued.
  ~CUstream_st();
  CUstream_st(const CUstream_st&) = delete;
  CUstream_st& operator=(const CUstream_st&) = delete;

  int device() const { return device_; }
  // After a fault a device does nothing more, but for what is done `always`.
  kvern::simt::StreamPlace Push(kvern::simt::Task task, bool always);
  void Synchronize();
  bool Idle();

 private:
  void Run();

  const int device_;
  const bool late_;
  // Its mutex guards all of this.
  const std::shared_ptr<kvern::simt::StreamGate> gate_ =
      std::make_shared<kvern::simt::StreamGate>();
  struct Item {
    kvern::simt::Task task;
    bool always;
  };
  std::deque<Item> queue_;
  uint64_t pushed_ = 0;
  uint64_t done_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace kvern_emulated_cuda
