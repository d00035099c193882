#include "tools/sim/fake_model.h"

#include "cluster/base/check.h"
#include "cluster/base/prefetch.h"
#include "cluster/base/rng.h"

namespace kvern::sim {

uint32_t LengthInSeed(uint64_t seed, uint32_t choice) {
  auto length = static_cast<uint32_t>(seed & ((uint64_t{1} << kSeedLengthBits) - 1));
  if (choice == 0 || length == 0) return length;
  return 1 + static_cast<uint32_t>(HashCounter(seed, choice) % (2 * uint64_t{length}));
}

Voice FakeModel::VoiceOf(uint64_t sampling_seed, uint32_t choice) const {
  return {HashStem(sampling_seed, choice),
          length_in_seed ? LengthInSeed(sampling_seed, choice) : 0};
}

uint32_t FakeModel::Token(const Voice& voice, uint32_t position) const {
  uint64_t hash = HashFromStem(voice.stem, position);
  if (!length_in_seed) return static_cast<uint32_t>(hash % vocab);
  if (position + 1 >= voice.length) return eos;
  auto token = static_cast<uint32_t>(hash % (vocab - 1));
  return token < eos ? token : token + 1;
}

StepWork FakeExecutor::WorkOf(const StepPlan& plan) {
  StepWork work;
  for (const PlanRow& row : plan.rows) work.Add(row.start, row.count);
  return work;
}

FakeExecutor::Sequence& FakeExecutor::At(Slot slot) {
  KVERN_CHECK(slot < slots_.size() && slots_[slot].used) << "slot " << slot;
  return slots_[slot];
}

FakeExecutor::Sequence& FakeExecutor::NewSequence(Slot slot) {
  if (slot >= slots_.size()) slots_.resize(slot + 1);
  KVERN_CHECK(!slots_[slot].used) << "slot " << slot;
  slots_[slot] = Sequence();
  slots_[slot].used = true;
  return slots_[slot];
}

void FakeExecutor::PrefetchSlots() const { Prefetch(slots_.data(), 4 * sizeof(Sequence)); }

void FakeExecutor::Execute(const StepPlan& plan, StepResult& result) {
  for (Slot slot : plan.releases) At(slot).used = false;
  for (const SequenceStart& start : plan.starts) {
    Sequence& sequence = NewSequence(start.slot);
    sequence.seed = start.sampling.seed;
    sequence.logprobs = start.sampling.logprobs;
    sequence.prompt_tokens = start.prompt_tokens;
    sequence.voice = model_.VoiceOf(sequence.seed, start.choice);
    sequence.known = static_cast<uint32_t>(start.tokens.size());
  }
  for (const SequenceFork& fork : plan.forks) {
    Sequence copy = At(fork.from);
    copy.voice = model_.VoiceOf(copy.seed, fork.choice);
    copy.known = copy.prompt_tokens;  // what the other choice had said before is its own
    NewSequence(fork.to) = copy;
  }
  result.step_id = plan.step_id;
  result.samples.clear();
  for (const PlanRow& row : plan.rows) {
    Sequence& sequence = At(row.slot);
    // A choice that resumes beside its siblings begins behind the blocks it shares with them.
    if (!sequence.began) sequence.computed = row.start;
    sequence.began = true;
    KVERN_CHECK_EQ(row.start, sequence.computed);
    sequence.computed += row.count;
    KVERN_CHECK_LE(sequence.computed, sequence.known);
    if (!row.sample) continue;
    KVERN_CHECK_EQ(sequence.computed, sequence.known);
    result.samples.push_back(Sample(row.slot, sequence));
    ++sequence.known;
  }
}

SampledToken FakeExecutor::Sample(Slot slot, const Sequence& sequence) const {
  SampledToken sample;
  sample.slot = slot;
  sample.token_id = model_.Token(sequence.voice, sequence.known - sequence.prompt_tokens);
  if (sequence.logprobs) {
    sample.logprob = {sample.token_id, -1.0f, {}};
    for (uint32_t k = 0; k < *sequence.logprobs; ++k) sample.logprob.top.push_back({k, -2.0f});
  }
  return sample;
}

}  // namespace kvern::sim
