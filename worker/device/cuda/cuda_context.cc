#include "worker/device/cuda/cuda_context.h"

#include <poll.h>
#include <sched.h>

#include <ctime>

#include "cluster/base/clock.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

// A step takes milliseconds: the first looks cost nothing, later ones leave the core to others.
constexpr int64_t kYieldAfterNs = 20'000;
constexpr int64_t kNapAfterNs = 500'000;
constexpr timespec kNap = {0, 50'000};

void Pause(int64_t waited_ns) {
  if (waited_ns > kNapAfterNs) {
    nanosleep(&kNap, nullptr);
  } else if (waited_ns > kYieldAfterNs) {
    sched_yield();
  }
}

}  // namespace

absl::Status CudaStatus(cudaError_t error, std::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  std::string message = absl::StrCat(ToAbsl(what), ": ", cudaGetErrorString(error), " (",
                                     cudaGetErrorName(error), ")");
  if (error == cudaErrorMemoryAllocation) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

absl::StatusOr<CudaEvent> NewCudaEvent() {
  cudaEvent_t event = nullptr;
  KVERN_RETURN_IF_ERROR(CudaStatus(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                                   "cudaEventCreateWithFlags"));
  return CudaEvent(event);
}

absl::StatusOr<int> CudaContext::CountGpus() {
  int count = 0;
  cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  return NoGpu(error == cudaSuccess ? cudaErrorNoDevice : error);
}

absl::Status CudaContext::NoGpu(cudaError_t error) {
  // CUDA says that a driver is insufficient where there is none at all, too.
  const bool driver = error == cudaErrorInsufficientDriver;
  const char* missing = driver ? "no NVIDIA driver, or too old a one," : "no usable GPU";
  return FailedPrecondition(missing, " on this machine (CUDA: ", cudaGetErrorString(error), ")");
}

absl::StatusOr<std::unique_ptr<CudaContext>> CudaContext::Open(int index) {
  KVERN_ASSIGN_OR_RETURN(const int count, CountGpus());
  if (index < 0 || index >= count) {
    return InvalidArgument("GPU ", index, ", this machine has ", count);
  }
  KVERN_RETURN_IF_ERROR(CudaStatus(cudaSetDevice(index), "cudaSetDevice"));
  cudaDeviceProp properties;
  KVERN_RETURN_IF_ERROR(
      CudaStatus(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties"));
  constexpr int kMinMajor = 8;
  if (properties.major < kMinMajor) {
    return FailedPrecondition("GPU ", index, " (", properties.name, ") has compute capability ",
                              properties.major, ".", properties.minor, ", needed: 8.0");
  }
  std::unique_ptr<CudaContext> context(new CudaContext(index, properties));
  KVERN_RETURN_IF_ERROR(context->MakeStreams());
  return context;
}

absl::Status CudaContext::MakeStreams() {
  for (cudaStream_t* stream : {&stream_, &copy_stream_}) {
    KVERN_RETURN_IF_ERROR(CudaStatus(cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking),
                                     "cudaStreamCreateWithFlags"));
  }
  KVERN_ASSIGN_OR_RETURN(reached_, NewCudaEvent());
  return absl::OkStatus();
}

CudaContext::~CudaContext() {
  Enter();
  for (cudaStream_t stream : {copy_stream_, stream_}) {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
}

void CudaContext::Enter() const { cudaSetDevice(index_); }

void CudaContext::Drain() const {
  Enter();
  cudaStreamSynchronize(stream_);
  cudaStreamSynchronize(copy_stream_);
}

// A stream that waits for an event waits for what it stood for at the time of the call.
void CudaContext::Order(cudaStream_t first, cudaStream_t then) {
  Check(cudaEventRecord(reached_.get(), first), "cudaEventRecord");
  Check(cudaStreamWaitEvent(then, reached_.get(), 0), "cudaStreamWaitEvent");
}

void CudaContext::CopyAfterCompute() { Order(stream_, copy_stream_); }

void CudaContext::ComputeAfterCopy() { Order(copy_stream_, stream_); }

void CudaContext::Check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) Fail(CudaStatus(error, absl::StrCat("GPU ", index_, ": ", what)));
}

void CudaContext::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

absl::Status CudaContext::WaitForStream(cudaStream_t stream) {
  Enter();
  Check(cudaEventRecord(reached_.get(), stream), "cudaEventRecord");
  return WaitFor(reached_.get());
}

absl::Status CudaContext::WaitFor(cudaEvent_t event) {
  Enter();
  const Time start = MonotonicNow();
  while (status_.ok()) {
    const cudaError_t error = cudaEventQuery(event);
    if (error != cudaErrorNotReady) {
      Check(error, "a step");
      // Whoever waited may now read what a failed collective left.
      if (error == cudaSuccess && watch_ != nullptr) Fail(watch_(0));
      break;
    }
    const int64_t waited = MonotonicNow() - start;
    if (watch_ != nullptr) Fail(watch_(waited));
    Pause(waited);
  }
  return status_;
}

}  // namespace kvern::inline KVERN_GPU_BUILD
