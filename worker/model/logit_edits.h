// logit_bias, min_tokens and the three penalties, applied to the few logits they touch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cluster/capacity/kv_budget.h"
#include "schemas/client_messages.h"

namespace kvern {

// Columns that were changed and what they held before, ascending by column.
using LogitEdits = std::vector<std::pair<uint32_t, float>>;

// A masked token's logit: never drawn beside any other, and far from where float32 arithmetic ends.
inline constexpr float kMaskedLogit = -1e30f;

struct EditInput {
  const SamplingParams* params = nullptr;
  uint32_t position = 0;             // of the token to be drawn, in the output
  std::span<const uint32_t> tokens;  // prompt, then output
  uint32_t prompt_tokens = 0;
  std::span<const uint32_t> eos_ids;
};

// Whether any logit may change.
bool HasEdits(const EditInput& input);

// Keeps scratch space from row to row. One thread.
class LogitEditor {
 public:
  explicit LogitEditor(ShardRange vocab) : vocab_(vocab), counts_(vocab.size()) {}

  // Edits logits[vocab.size()] in place, in vLLM V1's order: logit_bias; EOS and stop ids masked
  // while position < min_tokens; repetition (l > 0 ? l / r : l * r, for tokens of prompt or
  // output), frequency
  // (- f * count in the output), presence (- p if in the output). `edits` gets what was there
  // before.
  void Apply(const EditInput& input, float* logits, LogitEdits& edits);

 private:
  struct Counts {
    uint32_t output = 0;
    bool seen = false;  // in prompt or output
  };
  bool Holds(uint32_t token) const { return token >= vocab_.begin && token < vocab_.end; }
  void Touch(uint32_t column, const float* logits, LogitEdits& edits);
  void Penalise(const EditInput& input, float* logits, LogitEdits& edits);

  ShardRange vocab_;
  std::vector<Counts> counts_;  // of each column; zero between calls
  std::vector<uint32_t> seen_;  // columns whose counts are not zero
};

// The value before the edits of a column that now holds `now`.
float RawLogit(const LogitEdits& edits, uint32_t column, float now);

}  // namespace kvern
