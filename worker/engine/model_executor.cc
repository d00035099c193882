#include "worker/engine/model_executor.h"

#include <algorithm>
#include <utility>

#include "worker/device/ops.h"

namespace kvern {
namespace {

// More slots than a plan can name; bounds the table against a broken plan.
constexpr Slot kMaxSlot = 1u << 20;

}  // namespace

absl::StatusOr<StepResult> ModelExecutor::Execute(const StepPlan& plan) {
  KVERN_RETURN_IF_ERROR(CheckOrder(plan));
  KVERN_RETURN_IF_ERROR(UpdateSequences(plan));
  KVERN_RETURN_IF_ERROR(CopyBlocks(plan));
  KVERN_RETURN_IF_ERROR(BuildLayout(plan));
  KVERN_ASSIGN_OR_RETURN(StepResult result, RunModel(plan));
  last_step_ = plan.step_id;
  last_hash_ = SamplesHash(result);
  return result;
}

absl::Status ModelExecutor::CheckOrder(const StepPlan& plan) const {
  if (plan.step_id != last_step_ + 1) {
    return Internal("plan of step ", plan.step_id, " came after step ", last_step_);
  }
  if (plan.previous_samples_hash != last_hash_) {
    return Internal("this rank drew other tokens than the leader in step ", last_step_);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelExecutor::Sequence*> ModelExecutor::Find(Slot slot) {
  if (slot < slots_.size() && slots_[slot] != nullptr) return slots_[slot].get();
  return Internal("the plan after step ", last_step_, " names slot ", slot, ", which is empty");
}

absl::Status ModelExecutor::UpdateSequences(const StepPlan& plan) {
  for (Slot slot : plan.releases) {
    KVERN_RETURN_IF_ERROR(Find(slot).status());
    slots_[slot].reset();
  }
  for (const SequenceStart& start : plan.starts) {
    if (start.slot >= kMaxSlot) return Internal("slot ", start.slot, " is beyond ", kMaxSlot);
    if (start.slot >= slots_.size()) slots_.resize(start.slot + 1);
    if (slots_[start.slot] != nullptr) return Internal("slot ", start.slot, " is started twice");
    slots_[start.slot] = std::make_unique<Sequence>(Sequence{
        start.tokens, start.prompt_tokens, start.choice, 0, start.sampling, start.eos_ids, {}});
  }
  for (const SequenceFork& fork : plan.forks) KVERN_RETURN_IF_ERROR(Fork(fork));
  for (const BlockAppend& append : plan.appends) KVERN_RETURN_IF_ERROR(Append(append));
  return absl::OkStatus();
}

absl::Status ModelExecutor::Fork(const SequenceFork& fork) {
  KVERN_ASSIGN_OR_RETURN(Sequence * from, Find(fork.from));
  if (fork.to >= kMaxSlot) return Internal("slot ", fork.to, " is beyond ", kMaxSlot);
  if (fork.to >= slots_.size()) slots_.resize(fork.to + 1);
  if (slots_[fork.to] != nullptr) return Internal("slot ", fork.to, " is started twice");
  auto to = std::make_unique<Sequence>(*from);
  // What the other choice had said before is its own.
  to->tokens.resize(to->prompt_tokens);
  to->choice = fork.choice;
  slots_[fork.to] = std::move(to);
  return absl::OkStatus();
}

absl::Status ModelExecutor::Append(const BlockAppend& append) {
  KVERN_ASSIGN_OR_RETURN(Sequence * sequence, Find(append.slot));
  if (append.first > sequence->table.size()) {
    return Internal("blocks of slot ", append.slot, " from ", append.first, ", its table has ",
                    sequence->table.size());
  }
  sequence->table.resize(append.first);
  for (BlockId block : append.blocks) {
    if (block >= cache_->shape().num_blocks) {
      return Internal("block ", block, " of ", cache_->shape().num_blocks);
    }
    sequence->table.push_back(block);
  }
  return absl::OkStatus();
}

absl::Status ModelExecutor::CopyBlocks(const StepPlan& plan) {
  if (plan.copies.empty()) return absl::OkStatus();
  std::vector<std::pair<uint32_t, uint32_t>> pairs;
  for (const BlockCopy& copy : plan.copies) {
    if (std::max(copy.from, copy.to) >= cache_->shape().num_blocks) {
      return Internal("copy of block ", copy.from, " to ", copy.to, " of ",
                      cache_->shape().num_blocks);
    }
    pairs.emplace_back(copy.from, copy.to);
  }
  device_->ops().CopyBlocks(pairs, *cache_);
  return absl::OkStatus();
}

absl::Status ModelExecutor::BuildLayout(const StepPlan& plan) {
  layout_.token_ids.clear();
  layout_.positions.clear();
  layout_.sequences.clear();
  layout_.logit_rows.clear();
  sample_rows_.clear();
  sampled_.clear();
  for (const PlanRow& row : plan.rows) {
    KVERN_ASSIGN_OR_RETURN(Sequence * sequence, Find(row.slot));
    uint64_t end = uint64_t{row.start} + row.count;
    // A sequence that brings its own tokens to shared blocks starts behind the blocks it shares.
    if (row.count == 0 || end > sequence->tokens.size() ||
        end > sequence->table.size() * kBlockSize || row.start < sequence->computed) {
      return Internal("row of slot ", row.slot, ", tokens ", row.start, " to ", end, ": it has ",
                      sequence->tokens.size(), " tokens, ", sequence->computed, " computed, and ",
                      sequence->table.size(), " blocks");
    }
    int64_t first_row = static_cast<int64_t>(layout_.token_ids.size());
    layout_.sequences.push_back({first_row, row.start, row.count, sequence->table});
    for (uint32_t i = row.start; i < end; ++i) {
      layout_.token_ids.push_back(sequence->tokens[i]);
      layout_.positions.push_back(i);
    }
    sequence->computed = static_cast<uint32_t>(end);
    if (!row.sample) continue;
    layout_.logit_rows.push_back(first_row + row.count - 1);
    sampled_.push_back(sequence);
    sample_rows_.push_back({row.slot, &sequence->sampling, sequence->choice,
                            static_cast<uint32_t>(end) - sequence->prompt_tokens, sequence->tokens,
                            sequence->prompt_tokens, sequence->eos_ids});
  }
  return absl::OkStatus();
}

absl::StatusOr<StepResult> ModelExecutor::RunModel(const StepPlan& plan) {
  StepResult result;
  result.step_id = plan.step_id;
  KVERN_ASSIGN_OR_RETURN(Tensor logits, decoder_->Forward(layout_, *cache_));
  if (sample_rows_.empty()) {
    KVERN_RETURN_IF_ERROR(device_->Synchronize());
    return result;
  }
  KVERN_ASSIGN_OR_RETURN(result.samples, sampler_->Sample(logits, sample_rows_));
  for (size_t i = 0; i < sampled_.size(); ++i) {
    sampled_[i]->tokens.push_back(result.samples[i].token_id);
  }
  return result;
}

}  // namespace kvern
