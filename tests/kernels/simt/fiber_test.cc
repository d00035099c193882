#include "kernels/simt/fiber.h"

#include <atomic>
#include <cfenv>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "tests/kernels/simt/emulated_kernel.h"

namespace kvern::simt {
namespace {

class FiberTest : public WithEachFiber {};
KVERN_INSTANTIATE_FIBERS(FiberTest);

struct Relay {
  Fiber home;
  Fiber fiber;
  // Atomic, since a switch by itself orders nothing for ThreadSanitizer.
  std::atomic<size_t> entries = 0;
  std::atomic<int> log[8] = {};

  void Log(int entry) { log[entries++] = entry; }
};

void RunRelay(void* argument) {
  Relay& relay = *static_cast<Relay*>(argument);
  for (int turn = 0; turn < 3; ++turn) {
    relay.Log(10 + turn);
    Fiber::Switch(relay.fiber, relay.home);
  }
  Fiber::SwitchForGood(relay.fiber, relay.home);
}

TEST_P(FiberTest, TakesTurnsWithItsThread) {
  Relay relay;
  std::vector<std::max_align_t> stack((64 << 10) / sizeof(std::max_align_t));
  void* start = stack.data();
  size_t bytes = stack.size() * sizeof(std::max_align_t);
  ASSERT_NE(std::align(64, bytes - 64, start, bytes), nullptr);
  relay.fiber.Start(GetParam(), start, bytes / 64 * 64, &RunRelay, &relay);
  for (int turn = 0; turn < 4; ++turn) {
    relay.Log(turn);
    Fiber::Switch(relay.home, relay.fiber);
  }
  EXPECT_EQ(std::vector<int>(relay.log, relay.log + relay.entries),
            (std::vector<int>{0, 10, 1, 11, 2, 12, 3}));
}

// The floating-point environment is of the fiber: MXCSR and the x87 control word are switched.
TEST_P(FiberTest, RoundingModeIsNotCarriedOver) {
  volatile double third_down[2] = {};
  RunKernel(1, 2, [&] {
    if (threadIdx.x == 0) std::fesetround(FE_DOWNWARD);
    __syncthreads();
    ASSERT_EQ(std::fegetround(), threadIdx.x == 0 ? FE_DOWNWARD : FE_TONEAREST);
    volatile double one = -1.0;
    third_down[threadIdx.x] = one / 3.0;
    __syncthreads();
    std::fesetround(FE_TONEAREST);
  });
  EXPECT_LT(third_down[0], third_down[1]);
  EXPECT_EQ(std::fegetround(), FE_TONEAREST);
}

// Values in every callee-saved register and in vectors live across many switches.
TEST_P(FiberTest, LocalsSurviveSwitches) {
  RunKernel(1, 128, [] {
    uint64_t integers[12];
    double reals[12];
    for (unsigned i = 0; i < 12; ++i) {
      integers[i] = threadIdx.x * 100 + i;
      reals[i] = threadIdx.x + i * 0.5;
    }
    for (int turn = 0; turn < 20; ++turn) {
      for (unsigned i = 0; i < 12; ++i) {
        integers[i] += 1;
        reals[i] += 1;
      }
      __syncthreads();
    }
    for (unsigned i = 0; i < 12; ++i) {
      ASSERT_EQ(integers[i], threadIdx.x * 100 + i + 20);
      ASSERT_EQ(reals[i], threadIdx.x + i * 0.5 + 20);
    }
  });
}

TEST_P(FiberTest, StacksHoldLargeFrames) {
  RunKernel(1, 64, [] {
    volatile char frame[32 << 10];
    for (size_t i = 0; i < sizeof(frame); i += 512) frame[i] = static_cast<char>(threadIdx.x);
    __syncthreads();
    for (size_t i = 0; i < sizeof(frame); i += 512) {
      ASSERT_EQ(frame[i], static_cast<char>(threadIdx.x));
    }
  });
}

// Two ranks, an OS thread each, whose kernels hand a counter to and fro: no kernel could go on if
// waiting did not let the other threads of its block, and the other OS thread, run.
TEST_P(FiberTest, SpinningKernelsOfTwoThreadsMakeProgress) {
  constexpr unsigned kTurns = 200;
  unsigned turn = 0;
  unsigned data = 0;
  auto rank = [&](unsigned own) {
    RunKernel(1, 64, [&] {
      for (unsigned i = 0; i < kTurns; ++i) {
        if (threadIdx.x == 40) {
          while (atomicAdd(&turn, 0u) != 2 * i + own) __nanosleep(100);
          __threadfence();
          EXPECT_EQ(data, 2 * i + own);
          ++data;
          __threadfence();
          atomicAdd(&turn, 1u);
        }
        __syncthreads();
      }
    });
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
  EXPECT_EQ(data, 2 * kTurns);
}

// Lanes 0 and 1 spin on what a thread of another warp does: they must not only run each other.
TEST_P(FiberTest, SpinningThreadsLetAllOthersOfTheirBlockRun) {
  unsigned flag = 0;
  RunKernel(1, 96, [&] {
    if (threadIdx.x < 2) {
      while (atomicAdd(&flag, 0u) == 0) __nanosleep(1);
    }
    if (threadIdx.x >= 64) {
      for (int i = 0; i < 5; ++i) __syncwarp();
      if (threadIdx.x == 95) atomicExch(&flag, 1u);
    }
    __syncthreads();
  });
  EXPECT_EQ(flag, 1u);
}

// Only rounds of waiting with nothing between them count as idle, be the limit ever so short.
TEST_P(FiberTest, ThreadsThatGetFurtherAreNotIdle) {
  LimitIdling(std::chrono::milliseconds(0));
  for (bool block : {false, true}) {
    RunKernel(3, 64, [block] {
      for (int i = 0; i < 10; ++i) {
        __nanosleep(1);
        if (block) {
          __syncthreads();
        } else {
          __syncwarp();
        }
      }
      if (threadIdx.x < 20) __nanosleep(1);  // the others return meanwhile
    });
  }
  LimitIdling(kIdleLimit);
}

TEST_P(FiberTest, ManyOsThreadsRunLaunchesAtOnce) {
  std::vector<std::thread> threads;
  std::vector<unsigned> sums(6, 0);
  for (unsigned& sum : sums) {
    threads.emplace_back([&sum] {
      for (int launch = 0; launch < 5; ++launch) {
        RunKernel(3, 100, [&sum] {
          KVERN_SHARED(unsigned, count, 1);
          if (threadIdx.x == 0) count[0] = 0;
          __syncthreads();
          atomicAdd(&count[0], 1u);
          __syncthreads();
          if (threadIdx.x == 0) atomicAdd(&sum, count[0]);
        });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(sums, std::vector<unsigned>(6, 1500));
}

}  // namespace
}  // namespace kvern::simt
