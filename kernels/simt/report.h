// How the emulator ends when a kernel does what a GPU does not allow: a message with kernel, block
// and thread on standard error, then abort().
#pragma once

#include "kernels/simt/block.h"

namespace kvern::simt {

// Something the running thread does at `site`. `format` as for printf.
[[noreturn]] __attribute__((format(printf, 2, 3))) void Fail(CallSite site, const char* format,
                                                             ...);

// The running thread `self` and `other` should be in the same collective and are not.
[[noreturn]] void FailDivergent(const Thread& self, const Thread& other);

// No thread of the block gets any further, for the reason `why`.
[[noreturn]] void FailDeadlock(const Block& block, const char* why);

}  // namespace kvern::simt
