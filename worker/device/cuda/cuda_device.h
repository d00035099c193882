// A GPU as a Device.
#pragma once

#include <memory>

#include "worker/device/cuda/cuda_ops.h"
#include "worker/device/cuda/staged_copies.h"
#include "worker/device/gpu_device.h"

namespace kvern::inline KVERN_GPU_BUILD {

// "cuda" or "emulated": what this folder was built for.
const char* GpuBuildName();

class CudaDevice final : public Device, private GraphRecorder {
 public:
  // FailedPrecondition without a usable GPU, ResourceExhausted when memory is short.
  static absl::StatusOr<std::unique_ptr<Device>> Open(const GpuDeviceConfig& config);
  ~CudaDevice() override;

  std::string name() const override { return GpuBuildName(); }
  std::string description() const override;
  DType activation_dtype() const override { return DType::kBf16; }
  // Whatever is asked for is kept as bf16.
  size_t GroupBytes(WeightFormat) const override { return kQuantGroup * SizeOf(DType::kBf16); }
  bool host_memory() const override { return false; }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override;
  // Of any format: it is kept as bf16.
  absl::StatusOr<std::unique_ptr<Matrix>> NewMatrix(WeightFormat format, int64_t rows,
                                                    int64_t cols) override;
  absl::StatusOr<std::unique_ptr<KvCache>> NewKvCache(const KvCacheShape& shape) override;
  absl::StatusOr<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override;
  GraphRecorder* graph_recorder() override { return this; }
  absl::StatusOr<Memory> OwnMemory() override;
  void BeginLayout() override { laying_out_ = true; }
  absl::Status Commit() override;
  size_t own_bytes() const override { return ops_->bytes(); }
  Ops& ops() override { return *ops_; }
  absl::Status Synchronize() override { return context_->Wait(); }
  absl::Status CopyToDevice(void* target, const void* source, size_t bytes) override {
    return copies_->ToDevice(target, source, bytes);
  }
  absl::Status CopyToHost(void* target, const void* source, size_t bytes) override {
    return copies_->ToHost(target, source, bytes);
  }
  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) override;

  CudaContext& context() { return *context_; }

 private:
  CudaDevice(std::unique_ptr<CudaContext> context, int host_threads)
      : context_(std::move(context)), arena_(*context_), host_threads_(host_threads) {}
  absl::StatusOr<std::unique_ptr<Graph>> Record(const std::function<absl::Status()>& body) override;
  // What `make` asks the arena for is part of the layout or, outside one, there on return.
  template <typename Make>
  auto Place(Make make) -> decltype(make());

  std::unique_ptr<CudaContext> context_;  // last to go
  DeviceArena arena_;
  bool laying_out_ = false;
  std::unique_ptr<StagedCopies> copies_;
  std::unique_ptr<CudaOps> ops_;
  const int host_threads_;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
