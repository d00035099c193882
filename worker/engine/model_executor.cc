#include "worker/engine/model_executor.h"

#include <algorithm>
#include <utility>

#include "worker/device/ops.h"

namespace kvern {
namespace {

// More slots than a plan can name; bounds the table against a broken plan.
constexpr Slot kMaxSlot = 1u << 20;

}  // namespace

absl::Status ModelExecutor::Prepare(const StepPlan& plan) {
  KVERN_RETURN_IF_ERROR(CheckOrder(plan));
  KVERN_RETURN_IF_ERROR(UpdateSequences(plan));
  auto step = std::make_unique<Step>();
  step->id = plan.step_id;
  KVERN_RETURN_IF_ERROR(ListCopies(plan, *step));
  KVERN_RETURN_IF_ERROR(BuildLayout(plan, *step));
  KVERN_RETURN_IF_ERROR(decoder_->Prepare(step->layout));
  last_step_ = plan.step_id;
  steps_.PushBack(std::move(step));
  return steps_.size() == 1 ? Run(*steps_.front()) : absl::OkStatus();
}

absl::StatusOr<StepResult> ModelExecutor::Finish() {
  const std::unique_ptr<Step> step = steps_.PopFront();
  KVERN_ASSIGN_OR_RETURN(StepResult result, DrawTokens(*step));
  // The device must not wait for what the leader and the scheduler do with the result.
  if (!steps_.empty()) KVERN_RETURN_IF_ERROR(Run(*steps_.front()));
  last_finished_ = step->id;
  last_hash_ = SamplesHash(result);
  return result;
}

absl::Status ModelExecutor::CheckOrder(const StepPlan& plan) const {
  if (plan.step_id != last_step_ + 1) {
    return Internal("plan of step ", plan.step_id, " came after step ", last_step_);
  }
  if (plan.previous_samples_hash != last_hash_) {
    return Internal("this rank drew other tokens than the leader in step ", last_finished_);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<ModelExecutor::Sequence>> ModelExecutor::Find(Slot slot) {
  if (slot < slots_.size() && slots_[slot] != nullptr) return slots_[slot];
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
    slots_[start.slot] = std::make_shared<Sequence>(Sequence{
        start.tokens, start.prompt_tokens, start.choice, 0, 0, start.sampling, start.eos_ids, {}});
  }
  for (const SequenceFork& fork : plan.forks) KVERN_RETURN_IF_ERROR(Fork(fork));
  for (const BlockAppend& append : plan.appends) KVERN_RETURN_IF_ERROR(Append(append));
  return absl::OkStatus();
}

absl::Status ModelExecutor::Fork(const SequenceFork& fork) {
  KVERN_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> from, Find(fork.from));
  if (fork.to >= kMaxSlot) return Internal("slot ", fork.to, " is beyond ", kMaxSlot);
  if (fork.to >= slots_.size()) slots_.resize(fork.to + 1);
  if (slots_[fork.to] != nullptr) return Internal("slot ", fork.to, " is started twice");
  auto to = std::make_shared<Sequence>(*from);
  // What the other choice had said before is its own.
  to->tokens.resize(to->prompt_tokens);
  to->choice = fork.choice;
  to->drawing = 0;
  slots_[fork.to] = std::move(to);
  return absl::OkStatus();
}

absl::Status ModelExecutor::Append(const BlockAppend& append) {
  KVERN_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> sequence, Find(append.slot));
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

absl::Status ModelExecutor::ListCopies(const StepPlan& plan, Step& step) const {
  for (const BlockCopy& copy : plan.copies) {
    if (std::max(copy.from, copy.to) >= cache_->shape().num_blocks) {
      return Internal("copy of block ", copy.from, " to ", copy.to, " of ",
                      cache_->shape().num_blocks);
    }
    step.copies.emplace_back(copy.from, copy.to);
  }
  return absl::OkStatus();
}

absl::Status ModelExecutor::BuildLayout(const StepPlan& plan, Step& step) {
  for (const PlanRow& row : plan.rows) {
    KVERN_ASSIGN_OR_RETURN(const std::shared_ptr<Sequence> sequence, Find(row.slot));
    uint64_t end = uint64_t{row.start} + row.count;
    uint64_t length = sequence->tokens.size() + sequence->drawing;
    // A sequence that brings its own tokens to shared blocks starts behind the blocks it shares.
    if (row.count == 0 || end > length || end > sequence->table.size() * kBlockSize ||
        row.start < sequence->computed || (row.sample && end != length)) {
      return Internal("row of slot ", row.slot, ", tokens ", row.start, " to ", end, ": it has ",
                      length, " tokens, ", sequence->computed, " computed, and ",
                      sequence->table.size(), " blocks");
    }
    AddRow(row, sequence, step);
  }
  return absl::OkStatus();
}

void ModelExecutor::AddRow(const PlanRow& row, const std::shared_ptr<Sequence>& sequence,
                           Step& step) {
  BatchLayout& layout = step.layout;
  int64_t first_row = static_cast<int64_t>(layout.token_ids.size());
  uint32_t end = row.start + row.count;
  layout.sequences.push_back({first_row, row.start, row.count, sequence->table});
  for (uint32_t i = row.start; i < end; ++i) {
    bool known = i < sequence->tokens.size();
    if (!known) step.missing.push_back({layout.token_ids.size(), sequence, i});
    layout.token_ids.push_back(known ? sequence->tokens[i] : 0);
    layout.positions.push_back(i);
  }
  sequence->computed = end;
  if (!row.sample) return;
  layout.logit_rows.push_back(first_row + row.count - 1);
  step.draws.push_back({row.slot, sequence});
  ++sequence->drawing;
}

absl::Status ModelExecutor::Run(Step& step) {
  for (const Step::Missing& missing : step.missing) {
    step.layout.token_ids[missing.row] = missing.sequence->tokens[missing.index];
  }
  if (!step.missing.empty()) KVERN_RETURN_IF_ERROR(decoder_->SetTokenIds(step.layout));
  if (!step.copies.empty()) device_->ops().CopyBlocks(step.copies, *cache_);
  KVERN_ASSIGN_OR_RETURN(step.logits, decoder_->Run(*cache_));
  return absl::OkStatus();
}

absl::StatusOr<StepResult> ModelExecutor::DrawTokens(const Step& step) {
  StepResult result;
  result.step_id = step.id;
  if (step.draws.empty()) {
    KVERN_RETURN_IF_ERROR(device_->Synchronize());
    return result;
  }
  std::vector<SampleRow> rows;
  for (const auto& [slot, sequence] : step.draws) {
    auto position = static_cast<uint32_t>(sequence->tokens.size()) - sequence->prompt_tokens;
    rows.push_back({slot, &sequence->sampling, sequence->choice, position, sequence->tokens,
                    sequence->prompt_tokens, sequence->eos_ids});
  }
  KVERN_ASSIGN_OR_RETURN(result.samples, sampler_->Sample(step.logits, rows));
  for (size_t i = 0; i < step.draws.size(); ++i) {
    Sequence& sequence = *step.draws[i].sequence;
    sequence.tokens.push_back(result.samples[i].token_id);
    --sequence.drawing;
  }
  return result;
}

}  // namespace kvern
