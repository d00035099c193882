#include "schemas/plan_messages.h"

#include "cluster/base/rng.h"

namespace kvern {

uint64_t SamplesHash(const StepResult& result) {
  uint64_t hash = Mix64(result.step_id);
  for (const SampledToken& sample : result.samples) {
    hash = Mix64(hash ^ (uint64_t{sample.slot} << 32 | sample.token_id));
  }
  return hash;
}

}  // namespace kvern
