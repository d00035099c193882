// Stands in for the model: knows of each slot only what the plans said, as a rank would.
#pragma once

#include <cstdint>
#include <map>

#include "schemas/messages.h"

namespace kvern::sim {

class FakeExecutor {
 public:
  // Applies the plan and draws a token for each row that asks for one. Dies on a plan that no rank
  // could execute (unknown slot, tokens computed out of order).
  StepResult Execute(const StepPlan& plan);

 private:
  struct Sequence {
    SamplingParams sampling;
    uint32_t prompt_tokens = 0;
    uint32_t choice = 0;
    uint32_t known = 0;     // tokens: prompt and what was sampled
    uint32_t computed = 0;  // leading tokens that have keys and values
  };
  std::map<Slot, Sequence> slots_;
};

}  // namespace kvern::sim
