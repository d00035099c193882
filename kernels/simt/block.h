// The block that runs on this OS thread: its threads as fibers, who may run, and the barrier of
// all.
//
// Invariants, between two switches: a live thread is in exactly one state: running (one of them),
// ready (its bit in Warp::ready), waiting in a warp collective (its bit in Warp::waiting), or
// waiting in __syncthreads (none of these; counted in barrier_waiting_). Only the running thread
// changes any of this, so that there is nothing to lock.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "kernels/simt/arena.h"
#include "kernels/simt/call_site.h"
#include "kernels/simt/dim3.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/grid.h"
#include "kernels/simt/sanitizers.h"
#include "kernels/simt/stacks.h"

namespace kvern::simt {

class Block;
struct Warp;

inline constexpr unsigned kWarpSize = 32;
inline constexpr unsigned kMaxBlockThreads = 1024;

enum class Collective : uint8_t {
  kSyncThreads,
  kSyncWarp,
  kShuffle,
  kShuffleXor,
  kShuffleDown,
  kBallot,
  kAny,
  kAll,
  kLdMatrix,
  kLdMatrixTrans,
  kMma,
  kNanoSleep,  // No collective: a thread that lets the others run.
};

// As kernels spell it.
const char* CollectiveName(Collective op);

// cp.async of one thread: issued and not yet waited for, oldest first.
struct AsyncCopy {
  void* shared;
  const void* global;  // Null: zeros.
};
struct AsyncCopies {
  std::vector<AsyncCopy> copies;
  std::vector<size_t> group_ends;  // Into `copies`, one for each committed group.
};

struct Thread {
  uint3 index = {};  // threadIdx
  unsigned lane = 0;
  Warp* warp = nullptr;
  Block* block = nullptr;
  bool started = false;  // Its fiber exists.
  // The collective it was in last; while it waits, that one.
  Collective op = Collective::kSyncThreads;
  CallSite site;
  BarrierOrder order;
  AsyncCopies async;
  Fiber fiber;
};

struct Warp {
  unsigned number = 0;
  uint32_t live = 0;     // Lanes that exist and have not returned.
  uint32_t ready = 0;    // Lanes that can run.
  uint32_t waiting = 0;  // Lanes in a warp collective that is not complete.
  uint32_t partial = 0;  // Of `waiting`: those whose mask is not all lanes.
  uint32_t masks[kWarpSize] = {};
  void* operands[kWarpSize] = {};
  Thread lanes[kWarpSize];
  std::unique_ptr<WarpStacks> stacks;
};

// What the running thread sees of its launch. One for each OS thread.
struct Here {
  Thread* thread = nullptr;  // Null: no kernel is running.
  const char* kernel = "";
  dim3 grid_dim, block_dim;
  uint3 block_index = {};
};
extern constinit thread_local Here t_here;

class Block {
 public:
  explicit Block(FiberKind kind) : kind_(kind) {}
  ~Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  FiberKind kind() const { return kind_; }

  // All blocks of a launch, one after another. Called by the OS thread, outside of any kernel.
  void RunAll(const LaunchShape& shape, const std::function<void()>& thread_body);

  // The rest is called by the running thread.

  void SyncThreads(CallSite site);
  // Lets every other ready thread of the block run before the caller goes on, and then other OS
  // threads: what a kernel waits for may be written by a kernel of another rank. Ends the process
  // when for longer than the limit (LimitIdling) the block has done nothing else.
  void Yield(CallSite site);
  // Suspends `self`, which is neither ready nor running any more, until Wake() has named it.
  void Wait(Thread& self);
  void Wake(Warp& warp, uint32_t lanes);

  SharedArena& shared() { return shared_; }
  unsigned num_warps() const { return num_warps_; }
  const Warp& warp(unsigned number) const { return *(*warps_)[number]; }

 private:
  using Warps = std::vector<std::unique_ptr<Warp>>;

  static void ThreadMain(void* thread);
  void Prepare(const LaunchShape& shape, Warps& warps);
  void RunOne(const Warps& warps);
  void Exit(Thread& self);
  void ReleaseBarrier();
  Thread* TakeReady(Warp& warp, uint32_t lanes);
  Thread* NextReady(Thread& self);
  void SwitchTo(Thread& self, Thread& next);
  void EndRound();

  FiberKind kind_;
  Fiber os_thread_;
  // With ThreadSanitizer blocks take turns with two sets, so that what a thread did in the block
  // before is not what the same thread does now. Each has as many warps as the largest block had.
#if defined(KVERN_SIMT_TSAN)
  static constexpr size_t kSets = 2;
#else
  static constexpr size_t kSets = 1;
#endif
  Warps sets_[kSets];
  const Warps* warps_ = nullptr;  // Of the running block.
  unsigned num_warps_ = 0;
  unsigned num_threads_ = 0;
  uint32_t warps_ready_ = 0;  // The warps whose `ready` is not 0.
  unsigned live_threads_ = 0;
  unsigned barrier_waiting_ = 0;
  Thread* barrier_first_ = nullptr;  // The first to arrive.
  const std::function<void()>* body_ = nullptr;
  // Whether there was a round of yields and nothing since, and when the first of those ended.
  bool idle_ = false;
  std::chrono::steady_clock::time_point idle_since_;
  bool ending_ = false;  // The fibers are told to leave for good.
  SharedArena shared_;
  LastingOrder launched_;
  LastingOrder returned_;
};

}  // namespace kvern::simt
