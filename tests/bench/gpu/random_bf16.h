// Operands for benches.
#pragma once

#include <cstdint>

#include "cluster/base/rng.h"

namespace kvern::gpu {

// The bits of a bf16 number of either sign, from 1/64 to 1/32.
inline uint16_t RandomBf16(Rng& rng) {
  const uint64_t drawn = rng.Next();
  return static_cast<uint16_t>(0x3c80 | (drawn & 0x7f) | (drawn & 0x80) << 8);
}

}  // namespace kvern::gpu
