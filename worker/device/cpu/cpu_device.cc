#include "worker/device/cpu/cpu_device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cluster/base/check.h"
#include "cluster/base/machine.h"
#include "cluster/base/options.h"
#include "kernels/cpu/isa.h"
#include "worker/device/cpu/cpu_matrix.h"
#include "worker/device/cpu/cpu_ops.h"
#include "worker/device/cpu/memory.h"
#include "worker/device/cpu/thread_pool.h"

namespace kvern {
namespace {

constexpr int kMaxThreads = 1024;

class CpuBuffer final : public Buffer {
 public:
  explicit CpuBuffer(AlignedMemory memory) : memory_(std::move(memory)) {}
  void* data() override { return memory_.data(); }
  size_t bytes() const override { return memory_.bytes(); }

 private:
  AlignedMemory memory_;
};

class CpuKvCache final : public KvCache {
 public:
  CpuKvCache(const KvCacheShape& shape, AlignedMemory memory)
      : shape_(shape), memory_(std::move(memory)) {}
  const KvCacheShape& shape() const override { return shape_; }
  void* data() override { return memory_.data(); }

 private:
  const KvCacheShape shape_;
  AlignedMemory memory_;
};

class CpuDevice final : public Device {
 public:
  CpuDevice(cpu::Isa isa, int threads) : isa_(isa), pool_(threads), ops_(isa, pool_) {}

  const absl::Status& status() const { return pool_.status(); }
  std::string name() const override { return "cpu"; }
  std::string description() const override {
    return absl::StrCat(cpu::IsaName(isa_), ", ", pool_.threads(),
                        pool_.threads() == 1 ? " thread" : " threads");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    KVERN_ASSIGN_OR_RETURN(AlignedMemory memory, AlignedMemory::Allocate(bytes));
    return std::unique_ptr<Buffer>(new CpuBuffer(std::move(memory)));
  }
  absl::StatusOr<std::unique_ptr<Matrix>> NewMatrix(WeightFormat format, int64_t rows,
                                                    int64_t cols) override {
    return CpuMatrix::Create(weights_, format, rows, cols);
  }
  absl::StatusOr<std::unique_ptr<KvCache>> NewKvCache(const KvCacheShape& shape) override;
  absl::StatusOr<std::unique_ptr<Batch>> NewBatch(const BatchLimits& limits) override {
    return CpuBatch::Create(limits);
  }
  DType activation_dtype() const override { return DType::kF32; }
  size_t GroupBytes(WeightFormat format) const override { return CpuMatrix::GroupBytes(format); }
  bool host_memory() const override { return true; }
  GraphRecorder* graph_recorder() override { return nullptr; }

  absl::StatusOr<Memory> OwnMemory() override {
    return FailedPrecondition("the memory of a CPU is the host's");
  }

  void BeginLayout() override {}
  absl::Status Commit() override { return absl::OkStatus(); }
  size_t own_bytes() const override { return 0; }

  Ops& ops() override { return ops_; }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  absl::Status CopyToDevice(void* target, const void* source, size_t bytes) override {
    if (bytes > 0) std::memcpy(target, source, bytes);
    return absl::OkStatus();
  }
  absl::Status CopyToHost(void* target, const void* source, size_t bytes) override {
    return CopyToDevice(target, source, bytes);
  }
  void ParallelFor(int64_t count, const std::function<void(int64_t)>& body) override {
    pool_.Items(count, [&](int, int64_t i) { body(i); });
  }

 private:
  const cpu::Isa isa_;
  ThreadPool pool_;
  CpuOps ops_;
  MemoryArena weights_;
};

absl::StatusOr<std::unique_ptr<KvCache>> CpuDevice::NewKvCache(const KvCacheShape& shape) {
  if (shape.num_blocks <= 0 || shape.num_layers <= 0 || shape.kv_heads <= 0 ||
      shape.head_dim <= 0 || shape.head_dim % 2 != 0 || shape.head_dim > cpu::kMaxHeadDim) {
    return InvalidArgument("KV cache of ", shape.num_blocks, " blocks, ", shape.num_layers,
                           " layers, ", shape.kv_heads, " KV heads, head_dim ", shape.head_dim,
                           ": all must be positive, head_dim even and at most ", cpu::kMaxHeadDim);
  }
  // The kernels may read a little past the last value (see AttentionRows).
  constexpr size_t kSlack = 64;
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(shape.num_blocks), shape.BlockBytes(), &bytes) ||
      __builtin_add_overflow(bytes, kSlack, &bytes)) {
    return ResourceExhausted("KV cache of ", shape.num_blocks, " blocks of ", shape.BlockBytes(),
                             " bytes overflows 64 bits");
  }
  // The system promises more than it has, and ends a process that takes it at its word.
  const uint64_t available = AvailableMemory();
  if (bytes > available) {
    return ResourceExhausted("KV cache of ", shape.num_blocks, " blocks is ", FormatSize(bytes),
                             "; of the memory ", FormatSize(available), " are available");
  }
  KVERN_ASSIGN_OR_RETURN(AlignedMemory memory, AlignedMemory::Allocate(bytes));
  // Touched now, so that a request never waits, or fails, for lack of memory later.
  constexpr int64_t kChunk = 4 << 20;
  const auto total = static_cast<int64_t>(bytes);
  pool_.Items((total + kChunk - 1) / kChunk, [&](int, int64_t i) {
    const int64_t begin = i * kChunk;
    std::memset(memory.data() + begin, 0, static_cast<size_t>(std::min(kChunk, total - begin)));
  });
  return std::unique_ptr<KvCache>(new CpuKvCache(shape, std::move(memory)));
}

absl::StatusOr<cpu::Isa> ParseIsa(const std::string& name) {
  constexpr std::pair<const char*, cpu::Isa> kNames[] = {
      {"plain", cpu::Isa::kPlain}, {"avx2", cpu::Isa::kAvx2}, {"avx512", cpu::Isa::kAvx512}};
  if (name == "auto") return cpu::BestIsa();
  for (const auto& [known, isa] : kNames) {
    if (name != known) continue;
    if (!cpu::IsaSupported(isa)) return InvalidArgument("isa: this CPU has no ", name);
    return isa;
  }
  return InvalidArgument("isa: '", name, "' is none of auto, plain, avx2, avx512");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> NewCpuDevice(const CpuDeviceConfig& config) {
  if (config.threads < 1 || config.threads > kMaxThreads) {
    return InvalidArgument("threads: ", config.threads, " is out of [1, ", kMaxThreads, "]");
  }
  KVERN_ASSIGN_OR_RETURN(const cpu::Isa isa, ParseIsa(config.isa));
  auto device = std::make_unique<CpuDevice>(isa, config.threads);
  KVERN_RETURN_IF_ERROR(device->status());
  return device;
}

}  // namespace kvern
