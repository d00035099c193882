// One GPU of one rank: its compute stream, its first error, and waiting without blocking.
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

// Belongs to the rank's thread.
class CudaContext {
 public:
  // At least 1. FailedPrecondition without a GPU or driver, saying so.
  static absl::StatusOr<int> CountGpus();
  // As CountGpus; InvalidArgument for an index beyond the
  // machine's.
  static absl::StatusOr<std::unique_ptr<CudaContext>> Open(int index);
  ~CudaContext();
  CudaContext(const CudaContext&) = delete;
  CudaContext& operator=(const CudaContext&) = delete;

  int index() const { return index_; }
  cudaStream_t stream() const { return stream_; }
  const cudaDeviceProp& properties() const { return properties_; }

  // Makes the GPU the calling thread's. Any thread; cheap when it is already.
  void Enter() const;

  // Keeps the first error: later calls on a stream are void after it.
  void Check(cudaError_t error, const char* what);
  void Fail(const absl::Status& status);
  const absl::Status& status() const { return status_; }

  // Waits until the stream has done what it was given: asking, not blocking, so that `watch` can
  // end a wait that has no end. Returns status().
  absl::Status Wait();
  // Waits until the stream is empty, for as long as that takes: before memory is given back, when
  // no communicator is left to wait for.
  void Drain() const;
  // Waits for an event of this stream in the same way as Wait.
  absl::Status WaitFor(cudaEvent_t event);

  // Asked while waiting, with how long this wait has lasted; an error is final. One at a time.
  using Watch = std::function<absl::Status(int64_t waited_ns)>;
  void SetWatch(Watch watch) { watch_ = std::move(watch); }

 private:
  CudaContext(int index, const cudaDeviceProp& properties)
      : index_(index), properties_(properties) {}

  const int index_;
  const cudaDeviceProp properties_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t reached_ = nullptr;
  absl::Status status_;
  Watch watch_;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
