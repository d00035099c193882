// An executor without a model: what it draws is a function of the sequence's tokens, so a lost or
// repeated row changes every later token.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "cluster/base/rng.h"
#include "worker/engine/executor.h"

namespace kvern {

class FakeExecutor : public Executor {
 public:
  static constexpr uint32_t kVocab = 1000;

  // Fails in the step of this id (0: never).
  explicit FakeExecutor(uint64_t fail_at = 0) : fail_at_(fail_at) {}

  // The token after `tokens` of a choice.
  static uint32_t NextToken(const std::vector<uint32_t>& tokens, uint32_t choice) {
    uint64_t hash = choice;
    for (uint32_t token : tokens) hash = HashCounter(hash, token);
    return static_cast<uint32_t>(hash % (kVocab - 1)) + 1;  // 0 is the EOS
  }

  // What a whole choice says.
  static std::vector<uint32_t> Expected(std::vector<uint32_t> prompt, uint32_t choice,
                                        uint32_t max_tokens) {
    std::vector<uint32_t> output;
    for (uint32_t i = 0; i < max_tokens; ++i) {
      uint32_t token = NextToken(prompt, choice);
      prompt.push_back(token);
      output.push_back(token);
    }
    return output;
  }

  absl::StatusOr<StepResult> Execute(const StepPlan& plan) override {
    if (plan.step_id == fail_at_) return Internal("step ", plan.step_id, " fails on purpose");
    if (plan.step_id != last_step_ + 1) return Internal("step ", plan.step_id, " out of order");
    if (plan.previous_samples_hash != last_hash_) return Internal("other samples");
    for (Slot slot : plan.releases) slots_.erase(slot);
    for (const SequenceStart& start : plan.starts) {
      slots_[start.slot] = {start.tokens, start.choice, 0};
    }
    for (const SequenceFork& fork : plan.forks) {
      slots_[fork.to] = slots_.at(fork.from);
      slots_[fork.to].choice = fork.choice;
    }
    StepResult result;
    result.step_id = plan.step_id;
    for (const PlanRow& row : plan.rows) {
      Sequence& sequence = slots_.at(row.slot);
      if (row.start != sequence.computed) return Internal("a row does not continue its sequence");
      sequence.computed += row.count;
      if (!row.sample) continue;
      if (sequence.computed != sequence.tokens.size()) return Internal("a draw before the end");
      uint32_t token = NextToken(sequence.tokens, sequence.choice);
      sequence.tokens.push_back(token);
      result.samples.push_back({row.slot, token, {}});
    }
    last_step_ = plan.step_id;
    last_hash_ = SamplesHash(result);
    return result;
  }

 private:
  struct Sequence {
    std::vector<uint32_t> tokens;
    uint32_t choice = 0;
    uint32_t computed = 0;
  };
  std::map<Slot, Sequence> slots_;
  uint64_t fail_at_;
  uint64_t last_step_ = 0;
  uint64_t last_hash_ = 0;
};

}  // namespace kvern
