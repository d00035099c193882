// Collectives of a warp: each lane brings its operands and waits; the last to arrive computes the
// results of all and goes on. So there is one switch per lane, and no second barrier: operands and
// results lie on the lanes' own stacks until they have been used.
#pragma once

#include <cstdint>

#include "kernels/simt/block.h"
#include "kernels/simt/call_site.h"

namespace kvern::simt {

// Operands as the lanes bring them; results are written into the same struct.

struct ShuffleOperands {
  uint64_t value;     // In: what this lane offers. Out: what it was given.
  unsigned argument;  // Source lane, xor mask or distance.
  unsigned width;     // Power of two, at most 32.
};

struct VoteOperands {
  uint32_t vote;  // In: 0 or 1. Out: the ballot, or 0 or 1.
};

struct LdMatrixOperands {
  uint32_t row[4];     // The 16 bytes at this lane's address.
  uint32_t result[4];  // One register per 8 x 8 matrix.
};

struct MmaOperands {
  float* d;           // [4], in and out.
  const uint32_t* a;  // [4]
  const uint32_t* b;  // [2]
};

// The running thread enters `op` with the lanes of `mask`; returns when all of them that have not
// returned from the kernel have, and `operands` (of the type that belongs to `op`) hold this lane's
// results. Lanes with another mask are not waited for. Aborts when lanes with the same mask are in
// another collective or at another site, when `mask` leaves out the caller, and for LdMatrix and
// Mma when a lane of the warp is missing.
void WarpCollective(Collective op, uint32_t mask, CallSite site, void* operands);

// A lane of `warp` has returned: completes what now waits for nobody.
void FinishCollectivesOfTheLiving(Warp& warp);

}  // namespace kvern::simt
