// The instruction sets that every kernel of this folder is compiled for, chosen at run time.
#pragma once

#include <cstdint>

namespace kvern::cpu {

// kPlain runs on any CPU (no vector instructions, no fused multiply-add, so its last bits differ).
// kAvx2 (with FMA and F16C) and kAvx512 give bitwise the same results.
enum class Isa : uint8_t { kPlain, kAvx2, kAvx512 };

// True when this CPU and operating system can run `isa`.
bool IsaSupported(Isa isa);

// The fastest supported one.
Isa BestIsa();

// "plain", "AVX2", "AVX-512".
const char* IsaName(Isa isa);

}  // namespace kvern::cpu
