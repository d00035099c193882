// An executor without a model: what it draws is a function of the sequence's tokens, so a lost or
// repeated row changes every later token. Writes down in which order it is called.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "cluster/base/rng.h"
#include "worker/engine/executor.h"

namespace kvern {

class FakeExecutor : public Executor {
 public:
  static constexpr uint32_t kVocab = 1000;

  // The token after `tokens` of a choice.
  static uint32_t NextToken(const std::vector<uint32_t>& tokens, uint32_t choice) {
    uint64_t hash = choice;
    for (uint32_t token : tokens) hash = HashCounter(hash, token);
    return static_cast<uint32_t>(hash % (kVocab - 1)) + 1;  // 0 is the EOS
  }

  // What a whole choice says.
  static std::vector<uint32_t> Expected(std::span<const uint32_t> prompt, uint32_t choice,
                                        uint32_t max_tokens) {
    std::vector<uint32_t> tokens(prompt.begin(), prompt.end());
    std::vector<uint32_t> output;
    for (uint32_t i = 0; i < max_tokens; ++i) {
      uint32_t token = NextToken(tokens, choice);
      tokens.push_back(token);
      output.push_back(token);
    }
    return output;
  }

  absl::Status Prepare(const StepPlan& plan) override {
    calls_ += absl::StrCat("prepare ", plan.step_id, "\n");
    if (plan.step_id != last_step_ + 1) return Internal("step ", plan.step_id, " out of order");
    if (plan.previous_samples_hash != last_hash_) return Internal("other samples");
    last_step_ = plan.step_id;
    plans_.push_back(plan);
    return absl::OkStatus();
  }

  absl::StatusOr<StepResult> Finish() override {
    if (plans_.empty()) return Internal("nothing is prepared");
    const StepPlan plan = plans_.front();
    plans_.pop_front();
    calls_ += absl::StrCat("finish ", plan.step_id, "\n");
    if (plan.step_id == fail_at_) return Internal("step ", plan.step_id, " fails on purpose");
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
    last_hash_ = SamplesHash(result);
    if (plan.step_id == differ_at_) last_hash_ ^= 1;
    return result;
  }

  // The step of this id fails.
  void FailAt(uint64_t step_id) { fail_at_ = step_id; }
  // The samples of the step of this id are not those of the other ranks.
  void DifferAt(uint64_t step_id) { differ_at_ = step_id; }

  const std::string& calls() const { return calls_; }

 private:
  struct Sequence {
    std::vector<uint32_t> tokens;
    uint32_t choice = 0;
    uint32_t computed = 0;
  };
  std::map<Slot, Sequence> slots_;
  std::deque<StepPlan> plans_;  // prepared
  std::string calls_;
  uint64_t fail_at_ = 0;
  uint64_t differ_at_ = 0;
  uint64_t last_step_ = 0;
  uint64_t last_hash_ = 0;
};

}  // namespace kvern
