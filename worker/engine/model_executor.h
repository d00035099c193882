// One rank's execution of plans with the real model: mirrors the running sequences, runs the
// decoder, draws.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "cluster/base/ring.h"
#include "worker/core/scheduler.h"
#include "worker/device/device.h"
#include "worker/engine/executor.h"
#include "worker/model/decoder.h"
#include "worker/model/sampler.h"

namespace kvern {

class ModelExecutor : public Executor {
 public:
  // All pointers outlive the executor. `vocab_size` bounds the token ids of plans.
  ModelExecutor(Device* device, Decoder* decoder, KvCache* cache, Sampler* sampler)
      : device_(device),
        decoder_(decoder),
        cache_(cache),
        sampler_(sampler),
        steps_(kMaxPlansInFlight) {}

  // Internal for a plan that does not follow from the ones before; else the decoder's and the
  // sampler's errors.
  absl::Status Prepare(const StepPlan& plan) override;
  absl::StatusOr<StepResult> Finish() override;

 private:
  // What every rank remembers of a running sequence; steps that are not finished keep it, too.
  struct Sequence {
    std::vector<uint32_t> tokens;  // prompt, then output
    uint32_t prompt_tokens = 0;
    uint32_t choice = 0;
    uint32_t drawing = 0;   // tokens after those: steps that are not finished draw them
    uint32_t computed = 0;  // leading tokens in the cache, when all that is prepared has run
    ResolvedSampling sampling;
    std::vector<uint32_t> eos_ids;
    std::vector<BlockId> table;
  };

  // A step that is prepared and not finished.
  struct Step {
    // A token of the layout that the step before draws.
    struct Missing {
      size_t row = 0;
      std::shared_ptr<const Sequence> sequence;
      uint32_t index = 0;  // of its tokens
    };
    struct Draw {
      Slot slot = 0;
      std::shared_ptr<Sequence> sequence;
    };
    uint64_t id = 0;
    std::vector<std::pair<uint32_t, uint32_t>> copies;  // of blocks, from and to
    BatchLayout layout;
    std::vector<Missing> missing;
    std::vector<Draw> draws;  // in the order of layout.logit_rows
    Tensor logits;            // once it runs
  };

  absl::Status CheckOrder(const StepPlan& plan) const;
  absl::Status UpdateSequences(const StepPlan& plan);
  absl::Status Fork(const SequenceFork& fork);
  absl::Status Append(const BlockAppend& append);
  absl::Status ListCopies(const StepPlan& plan, Step& step) const;
  absl::Status BuildLayout(const StepPlan& plan, Step& step);
  void AddRow(const PlanRow& row, const std::shared_ptr<Sequence>& sequence, Step& step);
  // Begins the step: all its tokens are known.
  absl::Status Run(Step& step);
  absl::StatusOr<StepResult> DrawTokens(const Step& step);

  // The sequence in `slot`; Internal if there is none.
  absl::StatusOr<std::shared_ptr<Sequence>> Find(Slot slot);

  Device* device_;
  Decoder* decoder_;
  KvCache* cache_;
  Sampler* sampler_;
  std::vector<std::shared_ptr<Sequence>> slots_;
  Ring<std::unique_ptr<Step>> steps_;  // oldest first; that one runs
  uint64_t last_step_ = 0;             // prepared
  uint64_t last_finished_ = 0;
  uint64_t last_hash_ = 0;  // of the samples of last_finished_
};

}  // namespace kvern
