#include "kernels/simt/block.h"

#include <sched.h>

#include <atomic>
#include <bit>

#include "kernels/simt/report.h"
#include "kernels/simt/warp.h"

namespace kvern::simt {

constinit thread_local Here t_here;

namespace {

std::atomic<std::chrono::milliseconds> g_idle_limit{kIdleLimit};

// The lanes of a warp above `lane`.
uint32_t LanesAbove(unsigned lane) { return ~uint32_t{0} << lane << 1; }

}  // namespace

void LimitIdling(std::chrono::milliseconds limit) { g_idle_limit.store(limit); }

Block::~Block() {
  ending_ = true;
  for (Warps& warps : sets_) {
    for (auto& warp : warps) {
      for (Thread& thread : warp->lanes) {
        if (thread.started) Fiber::Switch(os_thread_, thread.fiber);
      }
    }
  }
}

void Block::RunAll(const LaunchShape& shape, const std::function<void()>& thread_body) {
  body_ = &thread_body;
  t_here.kernel = shape.kernel;
  t_here.grid_dim = shape.grid;
  t_here.block_dim = shape.block;
  for (Warps& warps : sets_) Prepare(shape, warps);
  launched_.Release();
  size_t set = 0;
  uint3& index = t_here.block_index;
  for (index.z = 0; index.z < shape.grid.z; ++index.z) {
    for (index.y = 0; index.y < shape.grid.y; ++index.y) {
      for (index.x = 0; index.x < shape.grid.x; ++index.x) {
        shared_.BeginBlock(shape.dynamic_shared_bytes, shape.shared_limit);
        RunOne(sets_[set]);
        set = (set + 1) % kSets;
      }
    }
  }
  returned_.Acquire();
  body_ = nullptr;
}

// Fibers are made once and used again by each thread with the same number.
void Block::Prepare(const LaunchShape& shape, Warps& warps) {
  num_threads_ = shape.block.x * shape.block.y * shape.block.z;
  num_warps_ = (num_threads_ + kWarpSize - 1) / kWarpSize;
  while (warps.size() < num_warps_) {
    auto warp = std::make_unique<Warp>();
    warp->number = static_cast<unsigned>(warps.size());
    warp->stacks = std::make_unique<WarpStacks>(warp->number);
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      warp->lanes[lane].lane = lane;
      warp->lanes[lane].warp = warp.get();
      warp->lanes[lane].block = this;
    }
    warps.push_back(std::move(warp));
  }
  for (unsigned i = 0; i < num_threads_; ++i) {
    Warp& warp = *warps[i / kWarpSize];
    Thread& thread = warp.lanes[i % kWarpSize];
    thread.index = {i % shape.block.x, i / shape.block.x % shape.block.y,
                    i / (shape.block.x * shape.block.y)};
    if (thread.started) continue;
    WarpStacks::Range stack = warp.stacks->Of(thread.lane);
    thread.fiber.Start(kind_, stack.start, stack.bytes, &ThreadMain, &thread);
    thread.started = true;
  }
}

void Block::RunOne(const Warps& warps) {
  warps_ = &warps;
  for (unsigned i = 0; i < num_warps_; ++i) {
    unsigned lanes = num_threads_ - i * kWarpSize;
    Warp& warp = *warps[i];
    warp.live = lanes >= kWarpSize ? ~uint32_t{0} : (uint32_t{1} << lanes) - 1;
    warp.ready = warp.live;
    warp.waiting = 0;
    warp.partial = 0;
  }
  warps_ready_ = num_warps_ == 32 ? ~uint32_t{0} : (uint32_t{1} << num_warps_) - 1;
  live_threads_ = num_threads_;
  barrier_waiting_ = 0;
  idle_ = false;
  Thread* first = TakeReady(*warps[0], 1);
  t_here.thread = first;
  Fiber::Switch(os_thread_, first->fiber);
  t_here.thread = nullptr;
}

void Block::ThreadMain(void* thread) {
  Thread& self = *static_cast<Thread*>(thread);
  Block& block = *self.block;
  while (!block.ending_) {
    block.launched_.Acquire();
    (*block.body_)();
    self.async.copies.clear();
    self.async.group_ends.clear();
    block.returned_.Release();
    block.Exit(self);
  }
  Fiber::SwitchForGood(self.fiber, block.os_thread_);
}

// A thread that has returned counts as arrived wherever it is waited for.
void Block::Exit(Thread& self) {
  Warp& warp = *self.warp;
  idle_ = false;
  warp.live &= ~(uint32_t{1} << self.lane);
  --live_threads_;
  if (live_threads_ == 0) {
    Fiber::Switch(self.fiber, os_thread_);
    return;
  }
  if (warp.waiting != 0) FinishCollectivesOfTheLiving(warp);
  if (barrier_waiting_ == live_threads_) ReleaseBarrier();
  Wait(self);  // Until the next block.
}

void Block::SyncThreads(CallSite site) {
  Thread& self = *t_here.thread;
  self.op = Collective::kSyncThreads;
  self.site = site;
  if (barrier_waiting_ == 0) {
    barrier_first_ = &self;
    self.order = BarrierOrder::Create();
  } else {
    if (!(barrier_first_->site == site)) FailDivergent(self, *barrier_first_);
    self.order = barrier_first_->order;
  }
  BarrierOrder order = self.order;
  order.Arrive();
  ++barrier_waiting_;
  if (barrier_waiting_ == live_threads_) {
    ReleaseBarrier();
    self.warp->ready &= ~(uint32_t{1} << self.lane);  // It is running.
    if (self.warp->ready == 0) warps_ready_ &= ~(uint32_t{1} << self.warp->number);
  } else {
    Wait(self);
  }
  order.Leave();
}

// Every live thread is in the barrier.
void Block::ReleaseBarrier() {
  barrier_waiting_ = 0;
  for (unsigned i = 0; i < num_warps_; ++i) Wake(*(*warps_)[i], (*warps_)[i]->live);
}

void Block::Wake(Warp& warp, uint32_t lanes) {
  idle_ = false;
  if (lanes == 0) return;
  warp.ready |= lanes;
  warps_ready_ |= uint32_t{1} << warp.number;
}

// The lowest of `lanes`, which are some of the ready ones.
Thread* Block::TakeReady(Warp& warp, uint32_t lanes) {
  unsigned lane = static_cast<unsigned>(std::countr_zero(lanes));
  warp.ready &= ~(uint32_t{1} << lane);
  if (warp.ready == 0) warps_ready_ &= ~(uint32_t{1} << warp.number);
  return &warp.lanes[lane];
}

// One of the same warp if there is one: its stacks are warm, and its collective completes sooner.
Thread* Block::NextReady(Thread& self) {
  Warp& warp = *self.warp;
  if (warp.ready != 0) {
    uint32_t above = warp.ready & LanesAbove(self.lane);
    return TakeReady(warp, above != 0 ? above : warp.ready);
  }
  if (warps_ready_ == 0) return nullptr;
  uint32_t above = warps_ready_ & LanesAbove(warp.number);
  Warp& other =
      *(*warps_)[static_cast<unsigned>(std::countr_zero(above != 0 ? above : warps_ready_))];
  return TakeReady(other, other.ready);
}

void Block::SwitchTo(Thread& self, Thread& next) {
  t_here.thread = &next;
  Fiber::Switch(self.fiber, next.fiber);
}

void Block::Wait(Thread& self) {
  idle_ = false;
  Thread* next = NextReady(self);
  if (next == nullptr) FailDeadlock(*this, "no thread can run");
  SwitchTo(self, *next);
}

// Strictly round: the next thread of the block in ascending order, so that threads that only spin
// cannot keep the others from running. After each round other OS threads have their turn.
void Block::Yield(CallSite site) {
  Thread& self = *t_here.thread;
  self.op = Collective::kNanoSleep;
  self.site = site;
  Warp& warp = *self.warp;
  Thread* next = nullptr;
  uint32_t lanes_above = warp.ready & LanesAbove(self.lane);
  uint32_t warps_above = warps_ready_ & LanesAbove(warp.number);
  if (lanes_above != 0) {
    next = TakeReady(warp, lanes_above);
  } else if (warps_above != 0) {
    Warp& other = *(*warps_)[static_cast<unsigned>(std::countr_zero(warps_above))];
    next = TakeReady(other, other.ready);
  } else {
    EndRound();
    if (warps_ready_ == 0) return;
    Warp& other = *(*warps_)[static_cast<unsigned>(std::countr_zero(warps_ready_))];
    next = TakeReady(other, other.ready);
  }
  warp.ready |= uint32_t{1} << self.lane;
  warps_ready_ |= uint32_t{1} << warp.number;
  SwitchTo(self, *next);
}

// Every thread that could run has, up to its next wait or yield.
void Block::EndRound() {
  sched_yield();
  const auto now = std::chrono::steady_clock::now();
  if (!idle_) {
    idle_ = true;
    idle_since_ = now;
  } else if (now - idle_since_ > g_idle_limit.load(std::memory_order_relaxed)) {
    FailDeadlock(*this, "its threads wait for what nobody does");
  }
}

}  // namespace kvern::simt
