// The tables of a step in device memory: token ids, positions, cache slots, block tables, the work
// lists of attention. Two sets at fixed places, used in turn: a recorded step finds the tables of
// the later ones that use the same set.
#pragma once

#include <vector>

#include "kernels/cuda/attention_plan.h"
#include "worker/device/cuda/step_input.h"
#include "worker/device/device.h"

namespace kvern::inline KVERN_GPU_BUILD {

class CudaBatch final : public Batch {
 public:
  // InvalidArgument for heads that attention has no kernel for, and for tables beyond 32 bits.
  static absl::StatusOr<std::unique_ptr<Batch>> Create(CudaContext& context, DeviceArena& arena,
                                                       const BatchLimits& limits);

  absl::Status Load(const BatchLayout& layout, int64_t padded_rows) override;
  absl::Status SetTokenIds(const BatchLayout& layout) override;
  int slot() const override { return tables_->slot(); }
  size_t bytes() const override { return tables_->bytes() + workspace_.bytes(); }

  // All below: of the step that was loaded last, device pointers.
  int64_t rows() const { return rows_; }
  int64_t logit_rows() const { return logit_count_; }
  const uint32_t* token_ids() const { return At<uint32_t>(places_.token_ids); }
  const uint32_t* positions() const { return At<uint32_t>(places_.positions); }
  const int64_t* slots() const { return At<int64_t>(places_.slots); }
  const int32_t* logit_index() const { return At<int32_t>(places_.logit_rows); }
  const uint32_t* block_tables() const { return At<uint32_t>(places_.block_tables); }
  const gpu::AttentionItem* narrow() const { return At<gpu::AttentionItem>(places_.narrow); }
  const gpu::AttentionItem* wide() const { return At<gpu::AttentionItem>(places_.wide); }
  const gpu::AttentionMerge* merges() const { return At<gpu::AttentionMerge>(places_.merges); }
  const gpu::AttentionCounts* counts() const { return At<gpu::AttentionCounts>(places_.counts); }
  float* workspace() const { return static_cast<float*>(workspace_.data()); }
  int32_t workspace_slots() const { return max_slots_; }
  // Blocks of threads for each part of attention.
  int32_t narrow_blocks() const { return narrow_blocks_; }
  int32_t wide_blocks() const { return wide_blocks_; }
  int32_t merge_blocks() const { return merge_blocks_; }

 private:
  // Byte offsets of the tables, the same on the host and the device. What every step sends comes
  // first and close together.
  struct Places {
    size_t counts = 0, token_ids = 0, positions = 0, slots = 0, logit_rows = 0;
    size_t narrow = 0, wide = 0, merges = 0, block_tables = 0;
    size_t total = 0;
  };

  CudaBatch(CudaContext& context, const BatchLimits& limits);
  void LayOut();
  absl::Status Allocate(DeviceArena& arena);
  void FillRows(const BatchLayout& layout);
  void FillTables(const BatchLayout& layout);
  void PlanWork(const BatchLayout& layout, bool padded);
  template <typename T>
  T* Host(size_t place) const {
    return reinterpret_cast<T*>(tables_->host() + place);
  }
  template <typename T>
  const T* At(size_t place) const {
    return reinterpret_cast<const T*>(tables_->device() + place);
  }

  CudaContext& context_;
  const BatchLimits limits_;
  const int32_t max_slots_;
  Places places_;
  std::unique_ptr<StepInput> tables_;
  DeviceMemory workspace_;  // partial results of attention, of one step after the other
  gpu::AttentionPlan plan_;
  std::vector<gpu::AttentionSequence> sequences_;
  int64_t rows_ = 0;
  int64_t logit_count_ = 0;
  size_t block_entries_ = 0;
  int32_t narrow_blocks_ = 0;
  int32_t wide_blocks_ = 0;
  int32_t merge_blocks_ = 0;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
