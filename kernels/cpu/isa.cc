#include "kernels/cpu/isa.h"

#include "kernels/cpu/targets.h"
// After targets.h, which chooses what Highway compiles for.
#include "hwy/highway.h"

namespace kvern::cpu {

bool IsaSupported(Isa isa) {
  switch (isa) {
    case Isa::kPlain:
      return true;
    case Isa::kAvx2:
      return (hwy::SupportedTargets() & HWY_AVX2) != 0;
    case Isa::kAvx512:
      return (hwy::SupportedTargets() & HWY_AVX3) != 0;
  }
  return false;
}

Isa BestIsa() {
  if (IsaSupported(Isa::kAvx512)) return Isa::kAvx512;
  return IsaSupported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kPlain;
}

const char* IsaName(Isa isa) {
  constexpr const char* kNames[] = {"plain", "AVX2", "AVX-512"};
  return kNames[static_cast<int>(isa)];
}

}  // namespace kvern::cpu
