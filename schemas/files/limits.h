// Limits that both formats share; each refusal names the one it met.
#pragma once

#include <cstdint>

namespace kvern {

// Real models have under 100,000 tensors. This bounds what a table of tensors takes in memory.
inline constexpr uint64_t kMaxTensors = 1 << 17;
inline constexpr uint64_t kMaxTensorNameBytes = 256;

}  // namespace kvern
