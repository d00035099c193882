#include "kernels/simt/thread.h"

#include <atomic>

#include "kernels/simt/report.h"

namespace kvern::simt {
namespace {

// All fences of the process order each other: more than CUDA promises, so that a missing fence is
// seen and a fence on only one side may not be.
LastingOrder g_fences;

}  // namespace

void* StaticShared(const void* key, size_t bytes, size_t alignment, CallSite site) {
  SharedArena& shared = t_here.thread->block->shared();
  void* array = shared.Static(key, bytes, alignment);
  if (array == nullptr) {
    Fail(site, "%zu more bytes of static shared memory: at most %zu static, %zu in all, %zu arrays",
         bytes, kMaxStaticSharedBytes, shared.limit(), SharedArena::kMaxArrays);
  }
  return array;
}

uint64_t Shuffle(CallSite site, Collective op, uint32_t mask, uint64_t value, unsigned argument,
                 unsigned width) {
  // Not std::has_single_bit: without a popcnt instruction it is a call, and shuffles are frequent.
  if (width == 0 || (width & (width - 1)) != 0 || width > kWarpSize) {
    Fail(site, "%s with width %u, which is no power of two up to 32", CollectiveName(op), width);
  }
  ShuffleOperands operands = {value, argument, width};
  WarpCollective(op, mask, site, &operands);
  return operands.value;
}

uint32_t Vote(CallSite site, Collective op, uint32_t mask, bool vote) {
  VoteOperands operands = {vote ? 1u : 0u};
  WarpCollective(op, mask, site, &operands);
  return operands.vote;
}

void ThreadFence() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  g_fences.Acquire();
  g_fences.Release();
}

void FailMisaligned(const char* what, const void* pointer, CallSite site) {
  Fail(site, "%s at %p, which is not 16-byte aligned", what, pointer);
}

}  // namespace kvern::simt
