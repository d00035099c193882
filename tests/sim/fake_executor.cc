#include "tests/sim/fake_executor.h"

#include "cluster/base/check.h"
#include "tests/sim/checker.h"

namespace kvern::sim {

StepResult FakeExecutor::Execute(const StepPlan& plan) {
  for (Slot slot : plan.releases) KVERN_CHECK(slots_.erase(slot) == 1) << "slot " << slot;
  for (const SequenceStart& start : plan.starts) {
    Sequence sequence{start.sampling, start.prompt_tokens, start.choice,
                      static_cast<uint32_t>(start.tokens.size()), 0};
    KVERN_CHECK(slots_.emplace(start.slot, std::move(sequence)).second) << "slot " << start.slot;
  }
  for (const SequenceFork& fork : plan.forks) {
    KVERN_CHECK(slots_.contains(fork.from)) << "slot " << fork.from;
    Sequence sequence = slots_.at(fork.from);
    sequence.choice = fork.choice;
    KVERN_CHECK(slots_.emplace(fork.to, std::move(sequence)).second) << "slot " << fork.to;
  }
  StepResult result;
  result.step_id = plan.step_id;
  for (const PlanRow& row : plan.rows) {
    KVERN_CHECK(slots_.contains(row.slot)) << "slot " << row.slot;
    Sequence& sequence = slots_.at(row.slot);
    KVERN_CHECK_EQ(row.start, sequence.computed);
    sequence.computed += row.count;
    KVERN_CHECK_LE(sequence.computed, sequence.known);
    if (!row.sample) continue;
    KVERN_CHECK_EQ(sequence.computed, sequence.known);
    SampledToken sample;
    sample.slot = row.slot;
    sample.token_id =
        FakeToken(sequence.sampling.seed, sequence.choice, sequence.known - sequence.prompt_tokens);
    if (sequence.sampling.logprobs) {
      sample.logprob = {sample.token_id, -1.0f, {}};
      for (uint32_t k = 0; k < *sequence.sampling.logprobs; ++k) {
        sample.logprob.top.push_back({k, -2.0f});
      }
    }
    ++sequence.known;
    result.samples.push_back(std::move(sample));
  }
  return result;
}

}  // namespace kvern::sim
