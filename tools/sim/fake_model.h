// Stands in for the model: which token follows depends on nothing but the sampling seed, the choice
// and the position, so that a lost, repeated, reordered or exchanged token shows by its value.
#pragma once

#include <cstdint>
#include <vector>

#include "cluster/capacity/step_cost.h"
#include "schemas/messages.h"

namespace kvern::sim {

// What the tokens of one choice follow from.
struct Voice {
  uint64_t stem = 0;
  uint32_t length = 0;  // of its output, when the seed says it
};

struct FakeModel {
  uint32_t vocab = 64;
  uint32_t eos = 0;
  // A workload with known output lengths says each in the low bits of the request's seed; else the
  // end comes by chance, one time in `vocab`.
  bool length_in_seed = false;

  Voice VoiceOf(uint64_t sampling_seed, uint32_t choice) const;
  uint32_t Token(const Voice& voice, uint32_t position) const;
};

inline constexpr uint32_t kSeedLengthBits = 20;
// `output_tokens` < 2^kSeedLengthBits, `serial` < 2^(64 - kSeedLengthBits).
constexpr uint64_t SeedWithLength(uint64_t serial, uint32_t output_tokens) {
  return serial << kSeedLengthBits | output_tokens;
}
// Of choice 0; the others of a request differ from it by chance.
uint32_t LengthInSeed(uint64_t seed, uint32_t choice);

// Knows of each slot only what the plans said, as a rank would.
class FakeExecutor {
 public:
  explicit FakeExecutor(const FakeModel& model) : model_(model) {}

  // What the plan's rows cost, before it is executed.
  static StepWork WorkOf(const StepPlan& plan);

  // Applies the plan and draws a token for each row that asks for one. Dies on a plan that no rank
  // could execute (unknown slot, tokens computed out of order).
  void Execute(const StepPlan& plan, StepResult& result);
  // Asks for the memory of the first slots.
  void PrefetchSlots() const;

 private:
  struct Sequence {
    bool used = false;
    uint64_t seed = 0;
    Voice voice;
    std::optional<uint32_t> logprobs;
    uint32_t prompt_tokens = 0;
    uint32_t known = 0;     // tokens: prompt and what was sampled
    uint32_t computed = 0;  // leading tokens that have keys and values
    bool began = false;     // has had a row
  };

  Sequence& NewSequence(Slot slot);
  Sequence& At(Slot slot);
  SampledToken Sample(Slot slot, const Sequence& sequence) const;

  FakeModel model_;
  std::vector<Sequence> slots_;
};

}  // namespace kvern::sim
