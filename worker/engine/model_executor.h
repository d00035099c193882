// One rank's execution of plans with the real model: mirrors the running sequences, runs the
// decoder, draws.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "worker/device/device.h"
#include "worker/engine/executor.h"
#include "worker/model/decoder.h"
#include "worker/model/sampler.h"

namespace kvern {

class ModelExecutor : public Executor {
 public:
  // All pointers outlive the executor. `vocab_size` bounds the token ids of plans.
  ModelExecutor(Device* device, Decoder* decoder, KvCache* cache, Sampler* sampler)
      : device_(device), decoder_(decoder), cache_(cache), sampler_(sampler) {}

  // Internal for a plan that does not follow from the ones before; else the decoder's and the
  // sampler's errors.
  absl::StatusOr<StepResult> Execute(const StepPlan& plan) override;

 private:
  // What every rank remembers of a running sequence.
  struct Sequence {
    std::vector<uint32_t> tokens;  // prompt, then output
    uint32_t prompt_tokens = 0;
    uint32_t choice = 0;
    uint32_t computed = 0;  // leading tokens in the cache
    SamplingParams sampling;
    std::vector<uint32_t> eos_ids;
    std::vector<BlockId> table;
  };

  absl::Status CheckOrder(const StepPlan& plan) const;
  absl::Status UpdateSequences(const StepPlan& plan);
  absl::Status Fork(const SequenceFork& fork);
  absl::Status Append(const BlockAppend& append);
  absl::Status CopyBlocks(const StepPlan& plan);
  absl::Status BuildLayout(const StepPlan& plan);
  absl::StatusOr<StepResult> RunModel(const StepPlan& plan);

  // The sequence in `slot`; Internal if there is none.
  absl::StatusOr<Sequence*> Find(Slot slot);

  Device* device_;
  Decoder* decoder_;
  KvCache* cache_;
  Sampler* sampler_;
  std::vector<std::unique_ptr<Sequence>> slots_;
  BatchLayout layout_;  // of the newest step; reused
  std::vector<SampleRow> sample_rows_;
  std::vector<Sequence*> sampled_;  // whose rows sample_rows_ are
  uint64_t last_step_ = 0;
  uint64_t last_hash_ = 0;
};

}  // namespace kvern
