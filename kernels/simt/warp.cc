#include "kernels/simt/warp.h"

#include <bit>
#include <cstring>

#include "kernels/simt/report.h"

namespace kvern::simt {
namespace {

constexpr uint32_t kAllLanes = ~uint32_t{0};

// Calls visit(lane) for each set bit, in ascending order.
template <typename Visit>
void ForEachLane(uint32_t lanes, Visit visit) {
  for (; lanes != 0; lanes &= lanes - 1) visit(static_cast<unsigned>(std::countr_zero(lanes)));
}

template <typename Operands>
Operands& OperandsOf(Warp& warp, unsigned lane) {
  return *static_cast<Operands*>(warp.operands[lane]);
}

// Which lane a lane is given the value of; `outside` when it keeps its own (PTX ISA, shfl.sync).
unsigned ShuffleSource(Collective op, unsigned lane, const ShuffleOperands& operands) {
  unsigned in_segment = operands.width - 1;
  unsigned segment = lane & ~in_segment;
  unsigned last = segment | in_segment;
  unsigned source = lane;
  if (op == Collective::kShuffle) source = segment | (operands.argument & in_segment);
  if (op == Collective::kShuffleXor) source = lane ^ operands.argument;
  if (op == Collective::kShuffleDown) source = lane + operands.argument;
  return source <= last ? source : lane;
}

void Shuffle(Warp& warp, Collective op, uint32_t lanes) {
  uint64_t offered[kWarpSize];
  // What a lane offers that does not take part is undefined on a GPU: here it shows, as NaN.
  for (uint64_t& value : offered) value = ~uint64_t{0};
  ForEachLane(
      lanes, [&](unsigned lane) { offered[lane] = OperandsOf<ShuffleOperands>(warp, lane).value; });
  ForEachLane(lanes, [&](unsigned lane) {
    auto& operands = OperandsOf<ShuffleOperands>(warp, lane);
    operands.value = offered[ShuffleSource(op, lane, operands)];
  });
}

void Vote(Warp& warp, Collective op, uint32_t lanes) {
  uint32_t ballot = 0;
  ForEachLane(lanes,
              [&](unsigned lane) { ballot |= OperandsOf<VoteOperands>(warp, lane).vote << lane; });
  uint32_t result = ballot;
  if (op == Collective::kAny) result = ballot != 0 ? 1 : 0;
  if (op == Collective::kAll) result = ballot == lanes ? 1 : 0;
  ForEachLane(lanes, [&](unsigned lane) { OperandsOf<VoteOperands>(warp, lane).vote = result; });
}

// PTX ISA, ldmatrix .x4 .m8n8 .b16: lane 8 i + r holds row r of matrix i. Lane l is given, of each
// matrix, elements 2 (l mod 4) and the next of row l / 4; transposed, of column l / 4.
void LdMatrix(Warp& warp, bool transposed) {
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    auto& operands = OperandsOf<LdMatrixOperands>(warp, lane);
    unsigned outer = lane / 4;
    unsigned pair = lane % 4;
    for (unsigned matrix = 0; matrix < 4; ++matrix) {
      auto row = [&](unsigned r) { return OperandsOf<LdMatrixOperands>(warp, 8 * matrix + r).row; };
      if (!transposed) {
        operands.result[matrix] = row(outer)[pair];
        continue;
      }
      unsigned shift = 16 * (outer % 2);
      uint32_t low = row(2 * pair)[outer / 2] >> shift & 0xffff;
      uint32_t high = row(2 * pair + 1)[outer / 2] >> shift & 0xffff;
      operands.result[matrix] = low | high << 16;
    }
  }
}

// Four neighbours in a row. A vector of the compiler's: arithmetic on it is on each element.
typedef float Quad __attribute__((vector_size(16)));

Quad LoadQuad(const float* values) {
  Quad quad;
  std::memcpy(&quad, values, sizeof(quad));
  return quad;
}

// PTX ISA, mma.m16n8k16 with bf16 inputs: with g = lane / 4 and t = lane % 4, a lane holds
// a[0..3] = A[g, g + 8, g, g + 8][2 t + {0, 0, 8, 8} and the next],
// b[0..1] = B[2 t + {0, 8} and the next][g], d[0..3] = D[g, g, g + 8, g + 8][2 t, 2 t + 1 twice].
// Products are exact in float32; they are added to d in ascending order of k.
void Mma(Warp& warp) {
  alignas(16) float a[16][16];
  alignas(16) float b[16][8];
  alignas(16) float d[16][8];
  auto unpack = [](uint32_t pair, float* low, float* high) {
    *low = std::bit_cast<float>(pair << 16);
    *high = std::bit_cast<float>(pair & 0xffff0000u);
  };
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    const auto& operands = OperandsOf<MmaOperands>(warp, lane);
    unsigned g = lane / 4;
    unsigned t = lane % 4 * 2;
    unpack(operands.a[0], &a[g][t], &a[g][t + 1]);
    unpack(operands.a[1], &a[g + 8][t], &a[g + 8][t + 1]);
    unpack(operands.a[2], &a[g][t + 8], &a[g][t + 9]);
    unpack(operands.a[3], &a[g + 8][t + 8], &a[g + 8][t + 9]);
    unpack(operands.b[0], &b[t][g], &b[t + 1][g]);
    unpack(operands.b[1], &b[t + 8][g], &b[t + 9][g]);
    std::memcpy(&d[g][t], operands.d, 8);
    std::memcpy(&d[g + 8][t], operands.d + 2, 8);
  }
  for (unsigned m = 0; m < 16; ++m) {
    Quad left = LoadQuad(&d[m][0]);
    Quad right = LoadQuad(&d[m][4]);
    for (unsigned k = 0; k < 16; ++k) {
      left += a[m][k] * LoadQuad(&b[k][0]);
      right += a[m][k] * LoadQuad(&b[k][4]);
    }
    std::memcpy(&d[m][0], &left, sizeof(left));
    std::memcpy(&d[m][4], &right, sizeof(right));
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    float* result = OperandsOf<MmaOperands>(warp, lane).d;
    std::memcpy(result, &d[lane / 4][lane % 4 * 2], 8);
    std::memcpy(result + 2, &d[lane / 4 + 8][lane % 4 * 2], 8);
  }
}

void Execute(Warp& warp, Collective op, uint32_t lanes) {
  switch (op) {
    case Collective::kSyncThreads:
    case Collective::kSyncWarp:
    case Collective::kNanoSleep:
      return;
    case Collective::kShuffle:
    case Collective::kShuffleXor:
    case Collective::kShuffleDown:
      return Shuffle(warp, op, lanes);
    case Collective::kBallot:
    case Collective::kAny:
    case Collective::kAll:
      return Vote(warp, op, lanes);
    case Collective::kLdMatrix:
    case Collective::kLdMatrixTrans:
      return LdMatrix(warp, op == Collective::kLdMatrixTrans);
    case Collective::kMma:
      return Mma(warp);
  }
}

// The waiting lanes whose mask is `mask`.
uint32_t WaitingWith(const Warp& warp, uint32_t mask) {
  if (mask == kAllLanes) return warp.waiting & ~warp.partial;
  uint32_t with = 0;
  ForEachLane(warp.waiting & warp.partial & mask, [&](unsigned lane) {
    if (warp.masks[lane] == mask) with |= uint32_t{1} << lane;
  });
  return with;
}

bool NeedsAllLanes(Collective op) {
  return op == Collective::kLdMatrix || op == Collective::kLdMatrixTrans || op == Collective::kMma;
}

}  // namespace

void WarpCollective(Collective op, uint32_t mask, CallSite site, void* operands) {
  Thread& self = *t_here.thread;
  Warp& warp = *self.warp;
  uint32_t own = uint32_t{1} << self.lane;
  self.op = op;
  self.site = site;
  if ((mask & own) == 0) {
    Fail(site, "%s with mask 0x%08x, which leaves out its own lane %u", CollectiveName(op), mask,
         self.lane);
  }
  if (NeedsAllLanes(op) && warp.live != kAllLanes) {
    Fail(site, "%s needs all 32 lanes of the warp, only 0x%08x are there", CollectiveName(op),
         warp.live);
  }
  uint32_t group = WaitingWith(warp, mask);
  const Thread* other = nullptr;
  if (group != 0) {
    other = &warp.lanes[std::countr_zero(group)];
    if (other->op != op || !(other->site == site)) FailDivergent(self, *other);
  }
  BarrierOrder order;
  if (op == Collective::kSyncWarp) {
    order = other != nullptr ? other->order : BarrierOrder::Create();
    self.order = order;
    order.Arrive();
  }
  group |= own;
  warp.operands[self.lane] = operands;
  if (group == (mask & warp.live)) {
    Execute(warp, op, group);
    warp.waiting &= ~group;
    warp.partial &= ~group;
    self.block->Wake(warp, group & ~own);
  } else {
    warp.masks[self.lane] = mask;
    warp.waiting |= own;
    if (mask != kAllLanes) warp.partial |= own;
    self.block->Wait(self);
  }
  if (op == Collective::kSyncWarp) order.Leave();
}

void FinishCollectivesOfTheLiving(Warp& warp) {
  for (uint32_t rest = warp.waiting; rest != 0;) {
    unsigned lane = static_cast<unsigned>(std::countr_zero(rest));
    uint32_t mask = warp.masks[lane];
    uint32_t group = WaitingWith(warp, mask);
    rest &= ~group;
    if (group != (mask & warp.live)) continue;
    Collective op = warp.lanes[lane].op;
    if (NeedsAllLanes(op)) continue;  // The deadlock report will name it.
    Execute(warp, op, group);
    warp.waiting &= ~group;
    warp.partial &= ~group;
    warp.lanes[lane].block->Wake(warp, group);
  }
}

}  // namespace kvern::simt
