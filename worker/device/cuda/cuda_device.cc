#include "worker/device/cuda/cuda_device.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cluster/base/check.h"
#include "cluster/base/options.h"
#include "cluster/base/threads.h"
#include "worker/device/cuda/cuda_matrix.h"

#define KVERN_TEXT_OF(name) #name
#define KVERN_EXPANDED_TEXT_OF(name) KVERN_TEXT_OF(name)

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

class CudaBuffer final : public Buffer {
 public:
  explicit CudaBuffer(DeviceMemory memory) : memory_(std::move(memory)) {}
  void* data() override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }

 private:
  DeviceMemory memory_;
};

class CudaKvCache final : public KvCache {
 public:
  CudaKvCache(const KvCacheShape& shape, DeviceMemory memory)
      : shape_(shape), memory_(std::move(memory)) {}
  const KvCacheShape& shape() const override { return shape_; }
  void* data() override { return memory_.data(); }

 private:
  const KvCacheShape shape_;
  DeviceMemory memory_;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(CudaContext& context, cudaGraphExec_t exec) : context_(context), exec_(exec) {}
  ~CudaGraph() override {
    context_.Enter();
    cudaGraphExecDestroy(exec_);
  }
  absl::Status Launch() override {
    context_.Enter();
    return CudaStatus(cudaGraphLaunch(exec_, context_.stream()), "cudaGraphLaunch");
  }

 private:
  CudaContext& context_;
  cudaGraphExec_t exec_;
};

}  // namespace

const char* GpuBuildName() { return KVERN_EXPANDED_TEXT_OF(KVERN_GPU_BUILD); }

absl::StatusOr<std::unique_ptr<Device>> CudaDevice::Open(const GpuDeviceConfig& config) {
  KVERN_ASSIGN_OR_RETURN(auto context, CudaContext::Open(config.index));
  std::unique_ptr<CudaDevice> device(new CudaDevice(std::move(context), config.host_threads));
  KVERN_ASSIGN_OR_RETURN(device->copies_,
                         StagedCopies::Create(*device->context_, config.host_threads));
  KVERN_ASSIGN_OR_RETURN(
      device->ops_, CudaOps::Create(*device->context_, device->arena_, config.batch_invariant));
  return std::unique_ptr<Device>(std::move(device));
}

CudaDevice::~CudaDevice() { context_->Drain(); }

std::string CudaDevice::description() const {
  const cudaDeviceProp& properties = context_->properties();
  return absl::StrCat("GPU ", context_->index(), " (", properties.name, ", compute capability ",
                      properties.major, ".", properties.minor, ")");
}

absl::Status CudaDevice::Commit() {
  laying_out_ = false;
  return arena_.Commit();
}

template <typename Make>
auto CudaDevice::Place(Make make) -> decltype(make()) {
  if (laying_out_) return make();
  KVERN_RETURN_IF_ERROR(arena_.Commit());  // the device's own
  auto made = make();
  const absl::Status there = arena_.Commit();
  if (made.ok() && !there.ok()) return there;
  return made;
}

absl::StatusOr<std::unique_ptr<Buffer>> CudaDevice::Allocate(size_t bytes) {
  return Place([&]() -> absl::StatusOr<std::unique_ptr<Buffer>> {
    KVERN_ASSIGN_OR_RETURN(DeviceMemory memory, arena_.LayOut(bytes, DeviceArena::Content::kZero));
    return std::unique_ptr<Buffer>(new CudaBuffer(std::move(memory)));
  });
}

absl::StatusOr<std::unique_ptr<Matrix>> CudaDevice::NewMatrix(WeightFormat, int64_t rows,
                                                              int64_t cols) {
  return Place([&] { return CudaMatrix::Create(*copies_, arena_, rows, cols); });
}

absl::StatusOr<std::unique_ptr<KvCache>> CudaDevice::NewKvCache(const KvCacheShape& shape) {
  if (shape.num_blocks <= 0 || shape.num_layers <= 0 || shape.kv_heads <= 0 ||
      shape.head_dim <= 0) {
    return InvalidArgument("KV cache of ", shape.num_blocks, " blocks, ", shape.num_layers,
                           " layers, ", shape.kv_heads, " KV heads, head_dim ", shape.head_dim,
                           ": all must be positive");
  }
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(shape.num_blocks), shape.BlockBytes(), &bytes)) {
    return ResourceExhausted("KV cache of ", shape.num_blocks, " blocks of ", shape.BlockBytes(),
                             " bytes overflows 64 bits");
  }
  KVERN_ASSIGN_OR_RETURN(const Memory memory, OwnMemory());
  if (bytes > memory.free_bytes) {
    return ResourceExhausted("KV cache of ", shape.num_blocks, " blocks is ", FormatSize(bytes),
                             "; ", FormatSize(memory.free_bytes), " of GPU ", context_->index(),
                             "'s ", FormatSize(memory.total_bytes),
                             " are free beside weights and workspace");
  }
  return Place([&]() -> absl::StatusOr<std::unique_ptr<KvCache>> {
    KVERN_ASSIGN_OR_RETURN(DeviceMemory blocks, arena_.LayOut(bytes));
    return std::unique_ptr<KvCache>(new CudaKvCache(shape, std::move(blocks)));
  });
}

absl::StatusOr<std::unique_ptr<Batch>> CudaDevice::NewBatch(const BatchLimits& limits) {
  return Place([&] { return CudaBatch::Create(*context_, arena_, limits); });
}

absl::StatusOr<Device::Memory> CudaDevice::OwnMemory() {
  context_->Enter();
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  KVERN_RETURN_IF_ERROR(CudaStatus(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
  return Memory{free_bytes - std::min(free_bytes, arena_.laid_out_bytes()), total_bytes};
}

void CudaDevice::ParallelFor(int64_t count, const std::function<void(int64_t)>& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    context_->Enter();
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::thread> helpers;
  for (int i = 1; i < host_threads_ && i < count; ++i) {
    absl::StatusOr<std::thread> helper = StartThread(work);
    if (!helper.ok()) break;  // The others do it all.
    helpers.push_back(*std::move(helper));
  }
  work();
  for (std::thread& helper : helpers) helper.join();
}

absl::StatusOr<std::unique_ptr<Graph>> CudaDevice::Record(
    const std::function<absl::Status()>& body) {
  context_->Enter();
  cudaStream_t stream = context_->stream();
  // Other ranks of this process may allocate meanwhile: only this thread must not.
  KVERN_RETURN_IF_ERROR(CudaStatus(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal),
                                   "cudaStreamBeginCapture"));
  const absl::Status recorded = body();
  cudaGraph_t graph = nullptr;
  const absl::Status ended =
      CudaStatus(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  // A graph with collectives must not stay: NCCL does not let go of a communicator before it.
  const std::unique_ptr<CUgraph_st, decltype(&cudaGraphDestroy)> owned(graph, &cudaGraphDestroy);
  KVERN_RETURN_IF_ERROR(recorded);
  KVERN_RETURN_IF_ERROR(context_->status());
  KVERN_RETURN_IF_ERROR(ended);
  cudaGraphExec_t exec = nullptr;
  KVERN_RETURN_IF_ERROR(CudaStatus(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate"));
  return std::unique_ptr<Graph>(new CudaGraph(*context_, exec));
}

}  // namespace kvern::inline KVERN_GPU_BUILD
