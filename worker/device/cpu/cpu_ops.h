// The operations of ops.h on the CPU: checks shapes, cuts the work over the pool, calls the
// kernels.
#pragma once

#include <memory>
#include <vector>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sampling.h"
#include "worker/device/cpu/memory.h"
#include "worker/device/cpu/thread_pool.h"
#include "worker/device/ops.h"

namespace kvern {

// The host is the device: a batch is the layout itself.
class CpuBatch final : public Batch {
 public:
  // InvalidArgument for heads that the attention kernel does not take.
  static absl::StatusOr<std::unique_ptr<Batch>> Create(const BatchLimits& limits);

  absl::Status Load(const BatchLayout& layout, int64_t padded_rows) override;
  absl::Status SetTokenIds(const BatchLayout&) override { return absl::OkStatus(); }
  int slot() const override { return 0; }
  size_t bytes() const override { return 0; }
  const BatchLayout& layout() const;

 private:
  const BatchLayout* layout_ = nullptr;
};

// All calls from the rank's thread. Operations are done when they return.
class CpuOps final : public Ops {
 public:
  // REQUIRES: cpu::IsaSupported(isa); pool outlives this.
  CpuOps(cpu::Isa isa, ThreadPool& pool);

  void Embed(const Batch& batch, const Matrix& table, int64_t vocab_begin, Tensor out) override;
  void RmsNorm(Tensor x, const float* weight, float eps, Tensor out) override;
  void AddRmsNorm(Tensor delta, Tensor x, const float* weight, float eps, Tensor out) override;
  void MatMul(Tensor x, const Matrix& weight, const float* bias, Tensor out) override;
  void RopeAndStoreKv(Tensor qkv, const RopeTable& rope, const Batch& batch, int64_t layer,
                      KvCache& cache, Tensor q) override;
  void Attention(Tensor q, const Batch& batch, int64_t layer, const KvCache& cache,
                 Tensor out) override;
  void SwiGlu(Tensor gate_up, Tensor out) override;
  void GatherLogitRows(const Batch& batch, Tensor x, Tensor out) override;
  void CopyBlocks(std::span<const std::pair<uint32_t, uint32_t>> from_to, KvCache& cache) override;
  void AskLogits(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
                 std::vector<LogitAnswer>& answers) override;

 private:
  // Waking the pool and waiting for it costs a few microseconds: some ten thousand operations.
  static constexpr int64_t kWorthThreads = 50000;

  // From so many rows per thread on, threads share out the rows of a product instead of its
  // outputs. All read the whole matrix then, over and over: it must stay in the last cache.
  static constexpr int64_t kMinRowsPerThread = 96;
  static constexpr size_t kMaxSharedBytes = 4 << 20;
  // Packed rows that are multiplied at a time: half of a second-level cache of 1 MiB.
  static constexpr int64_t kMaxBlockFloats = 128 << 10;

  // Memory of each thread's own, or none.
  struct ThreadScratch {
    float* Of(int thread) const {
      return base == nullptr ? nullptr : base + static_cast<size_t>(thread) * stride;
    }

    float* base = nullptr;
    size_t stride = 0;
  };

  // Memory for the packed rows of a product: one copy, or one per thread when they are one tile.
  // Without `values` the kernel reads the rows in place.
  struct RowCopies {
    cpu::PackedRows Copy(int64_t i) const;

    cpu::PackedRows rows;
    int64_t tiles = 0;
    float* values = nullptr;
    int64_t value_stride = 0;  // from copy to copy
    float* sums = nullptr;
    int64_t sum_stride = 0;
  };

  // body(row) for each row, on several threads when rows * cost (float operations of a row) is
  // worth waking them.
  void ForRows(int64_t rows, int64_t cost, const std::function<void(int64_t)>& body);
  // Memory of at least `floats` float32, aligned to 64 bytes; the content is not kept.
  float* Scratch(AlignedMemory& memory, size_t floats);
  RowCopies NewRowCopies(Tensor x, const cpu::PackedMatrix& w);
  ThreadScratch WeightScratch(const cpu::PackedMatrix& w);
  void MatMulByRows(Tensor x, const cpu::PackedMatrix& w, const float* bias, Tensor out);
  void MatMulByPanels(Tensor x, const cpu::PackedMatrix& w, const float* bias, Tensor out);
  void PackTile(Tensor x, const cpu::PackedMatrix& w, const RowCopies& to, int64_t copy,
                int64_t tile);
  void TopCandidates(Tensor logits, int64_t row, int64_t k, std::vector<Candidate>& out);
  LogSumExpPart LogSumExp(Tensor logits, int64_t row, float inverse_temperature);
  Candidate GumbelMax(Tensor logits, int64_t row, float inverse_temperature, uint64_t key,
                      int64_t vocab_begin);
  void AttendWholeItems(const std::vector<cpu::AttentionRows>& items, bool parallel);
  void AttendSplitItems(const std::vector<cpu::AttentionRows>& items);

  ThreadPool& pool_;
  const cpu::MatMulKernels& matmul_;
  const cpu::RowKernels& rows_;
  const cpu::AttentionKernels& attention_;
  const cpu::SamplingKernels& sampling_;
  AlignedMemory packed_values_;
  AlignedMemory packed_sums_;
  AlignedMemory weight_scratch_;
  AlignedMemory attention_scratch_;
  AlignedMemory attention_partials_;
  std::vector<cpu::AttentionRows> attention_items_;
  std::vector<cpu::ScoredColumn> columns_;
};

}  // namespace kvern
