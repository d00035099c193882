// What the running thread calls: the core of the emulator as `language.h` uses it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/simt/block.h"
#include "kernels/simt/call_site.h"
#include "kernels/simt/warp.h"

namespace kvern::simt {

// Of the running thread's block.
void* StaticShared(const void* key, size_t bytes, size_t alignment, CallSite site);
inline void* DynamicShared() { return t_here.thread->block->shared().dynamic(); }

inline void SyncThreads(CallSite site) { t_here.thread->block->SyncThreads(site); }
inline void SyncWarp(CallSite site, uint32_t mask = ~uint32_t{0}) {
  WarpCollective(Collective::kSyncWarp, mask, site, nullptr);
}
// `op` is one of kShuffle, kShuffleXor, kShuffleDown.
uint64_t Shuffle(CallSite site, Collective op, uint32_t mask, uint64_t value, unsigned argument,
                 unsigned width);
// `op` is one of kBallot, kAny, kAll.
uint32_t Vote(CallSite site, Collective op, uint32_t mask, bool vote);

void ThreadFence();
inline void Yield(CallSite site) { t_here.thread->block->Yield(site); }

// Memory that a collective or an asynchronous copy touches on behalf of the running thread
// (memory_access.cc). Addresses are 16-byte aligned; rows and destinations lie in shared memory.
// Anything else aborts.

// Poisons the destination; the bytes are copied when AsyncWait() covers their group, or never.
void AsyncCopy16(void* shared, const void* global, bool valid, CallSite site);
void AsyncCommit();
// Completes all but the newest `pending` groups.
void AsyncWait(size_t pending);
void LoadMatrix(uint32_t (&result)[4], const void* row, bool transposed, CallSite site);
void Copy16(void* to, const void* from);
[[noreturn]] void FailMisaligned(const char* what, const void* pointer, CallSite site);
inline void CheckAligned16(const char* what, const void* pointer, CallSite site) {
  if (reinterpret_cast<uintptr_t>(pointer) % 16 != 0) FailMisaligned(what, pointer, site);
}

}  // namespace kvern::simt
