// Seeded inputs for kernel tests.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cluster/base/rng.h"
#include "kernels/cpu/isa.h"

namespace kvern {

// Uniform in [-scale, scale).
inline float RandomFloat(Rng& rng, float scale = 1) {
  return static_cast<float>((UnitInterval(rng.Next()) * 2 - 1) * static_cast<double>(scale));
}

inline std::vector<float> RandomFloats(Rng& rng, size_t count, float scale = 1) {
  std::vector<float> values(count);
  for (float& x : values) x = RandomFloat(rng, scale);
  return values;
}

inline std::vector<cpu::Isa> SupportedIsas() {
  std::vector<cpu::Isa> isas;
  for (cpu::Isa isa : {cpu::Isa::kPlain, cpu::Isa::kAvx2, cpu::Isa::kAvx512}) {
    if (cpu::IsaSupported(isa)) isas.push_back(isa);
  }
  return isas;
}

// The targets of this machine that must give AVX2's bits; a test is instantiated for each.
inline std::vector<cpu::Isa> IsasBeyondAvx2() {
  std::vector<cpu::Isa> isas = SupportedIsas();
  std::erase_if(isas, [](cpu::Isa isa) { return isa <= cpu::Isa::kAvx2; });
  return isas;
}

inline std::vector<uint32_t> Bits(const std::vector<float>& values) {
  std::vector<uint32_t> bits;
  for (float x : values) bits.push_back(std::bit_cast<uint32_t>(x));
  return bits;
}

}  // namespace kvern
