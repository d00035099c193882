// One GPU of one rank: its two streams, its first error, and waiting without blocking.
//
// KVERN_GPU_BUILD (emulated or cuda) is set by the target: this folder is built once for each, in
// an inline namespace of its own, so that both can be part of one process.
#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <memory>
#include <string>

#include "cluster/base/status.h"

namespace kvern::inline KVERN_GPU_BUILD {

// "cudaMalloc of 12 bytes: out of memory (cudaErrorMemoryAllocation)".
absl::Status CudaStatus(cudaError_t error, std::string_view what);

struct CudaEventDeleter {
  void operator()(CUevent_st* event) const { cudaEventDestroy(event); }
};
using CudaEvent = std::unique_ptr<CUevent_st, CudaEventDeleter>;
// Without timing. Of the calling thread's GPU.
absl::StatusOr<CudaEvent> NewCudaEvent();

// Belongs to the rank's thread.
class CudaContext {
 public:
  // At least 1. FailedPrecondition without a GPU or driver, saying so.
  static absl::StatusOr<int> CountGpus();
  // What CountGpus says of an error of CUDA's.
  static absl::Status NoGpu(cudaError_t error);
  // As CountGpus; InvalidArgument for an index beyond the
  // machine's.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Open(int index);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int index() const { return index_; }
  // Where everything is computed, and where memory is copied to and from the host meanwhile.
  cudaStream_t stream() const { return stream_; }
  cudaStream_t copy_stream() const { return copy_stream_; }
  const cudaDeviceProp& properties() const { return properties_; }

  // Makes the GPU the calling thread's. Any thread; cheap when it is already.
  void Enter() const;

  // Keeps the first error: later calls on a stream are void after it.
  void Check(cudaError_t error, const char* what);
  void Fail(const absl::Status& status);
  const absl::Status& status() const { return status_; }

  // Orders the streams: copies, or computations, that are enqueued from now on begin when all that
  // was enqueued on the other stream is done.
  void CopyAfterCompute();
  void ComputeAfterCopy();

  // Wait until the compute stream, or the copy stream, has done what it was given: asking, not
  // blocking, so that `watch` can end a wait that has no end. Return status().
  absl::Status Wait() { return WaitForStream(stream_); }
  absl::Status WaitForCopies() { return WaitForStream(copy_stream_); }
  // Waits for an event of either stream in the same way.
  absl::Status WaitFor(cudaEvent_t event);
  // Waits until both streams are empty, for as long as that takes: before memory is given back,
  // when no communicator is left to wait for.
  void Drain() const;

  // Asked while waiting, with how long this wait has lasted; an error is final. One at a time.
  using Watch = std::function<absl::Status(int64_t waited_ns)>;
  void SetWatch(Watch watch) { watch_ = std::move(watch); }

 private:
  CudaContext(int index, const cudaDeviceProp& properties)
      : index_(index), properties_(properties) {}

  absl::Status MakeStreams();
  void Order(cudaStream_t first, cudaStream_t then);
  absl::Status WaitForStream(cudaStream_t stream);

  const int index_;
  const cudaDeviceProp properties_;
  cudaStream_t stream_ = nullptr;
  cudaStream_t copy_stream_ = nullptr;
  CudaEvent reached_;  // that somebody waits for; set anew for each wait
  absl::Status status_;
  Watch watch_;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
