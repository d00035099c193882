// What a GPU would hang on, corrupt memory with or not launch: here it ends with a message that
// names kernel, block, thread and source line.
#include <chrono>
#include <cstdlib>
#include <string>

#include "tests/kernels/simt/emulated_kernel.h"

namespace kvern::simt {
namespace {

using gpu::CpAsync16;
using gpu::LdMatrixX4;
using gpu::Load16;
using gpu::MmaBf16;
using gpu::Store16;
using gpu::Vec16;

constexpr uint32_t kAll = ~0u;

class MisuseTest : public WithEachFiber {};
KVERN_INSTANTIATE_FIBERS(MisuseTest);

// "misuse_test.cc:LINE" for a line that lies `offset` lines from here.
#define LINE(offset) ("misuse_test\\.cc:" + std::to_string(__LINE__ + (offset)))

TEST_P(MisuseTest, BarrierThatSomeThreadsNeverReach) {
  const std::string kBarrier = LINE(4);
  const std::string kWarp = LINE(5);
  auto kernel = [] {
    if (threadIdx.x < 40) {
      __syncthreads();
    } else if (threadIdx.x < 60) {
      __syncwarp();
    }
  };
  // Threads 32 to 39 keep the second warp from its own barrier, and threads 40 to 59 the block.
  EXPECT_DEATH(RunKernel(dim3(2, 3), 64, kernel),
               "kernel 'tested', block \\(0,0,0\\): deadlock(.|\n)*"
               "threads \\(0,0,0\\) to \\(39,0,0\\) wait in __syncthreads at .*" +
                   kBarrier +
                   "(.|\n)*threads \\(40,0,0\\) to \\(59,0,0\\) wait in __syncwarp at .*" + kWarp +
                   "(.|\n)*4 of 64 threads have returned");
}

TEST_P(MisuseTest, DeadlockNamesTheBlockAndASingleThread) {
  const std::string kLine = LINE(3);
  auto kernel = [] {
    if (blockIdx.x == 1 && blockIdx.y == 2 && FlatThread() == 5) {
      __shfl_sync(kAll, 1, 0);
    } else {
      __syncthreads();
    }
  };
  EXPECT_DEATH(
      RunKernel(dim3(2, 3), dim3(4, 2), kernel),
      "block \\(1,2,0\\): deadlock(.|\n)*thread \\(1,1,0\\) waits in __shfl_sync at .*" + kLine);
}

// No timing decides these: the kernels cannot end.
TEST_P(MisuseTest, WaitingForWhatNobodyDoes) {
  const std::string kWait = LINE(6);
  const std::string kBarrier = LINE(7);
  auto kernel = [] {
    unsigned never = 0;
    if (threadIdx.x == 3) return;
    if (threadIdx.x == 70) {
      while (atomicAdd(&never, 0u) == 0) __nanosleep(20);
    }
    __syncthreads();
  };
  EXPECT_DEATH(
      {
        LimitIdling(std::chrono::milliseconds(20));
        RunKernel(2, 96, kernel);
      },
      "kernel 'tested', block \\(0,0,0\\): deadlock, its threads wait for what nobody does(.|\n)*"
      "threads \\(4,0,0\\) to \\(69,0,0\\) wait in __syncthreads at .*" +
          kBarrier + "\n  thread \\(70,0,0\\) waits in __nanosleep at .*" + kWait +
          "(.|\n)*1 of 96 threads have returned");
}

TEST_P(MisuseTest, ABlockThatWaitsForALaterOne) {
  const std::string kWait = LINE(4);
  unsigned flag = 0;
  auto kernel = [&flag] {
    if (blockIdx.x == 1) {
      while (atomicAdd(&flag, 0u) == 0) __nanosleep(20);
    } else if (blockIdx.x == 2 && threadIdx.x == 0) {
      atomicExch(&flag, 1u);
    }
  };
  EXPECT_DEATH(
      {
        LimitIdling(std::chrono::milliseconds(20));
        RunKernel(3, 64, kernel);
      },
      "block \\(1,0,0\\): deadlock(.|\n)*threads \\(0,0,0\\) to \\(63,0,0\\) wait in __nanosleep "
      "at .*" +
          kWait);
}

TEST_P(MisuseTest, LanesInDifferentCollectives) {
  const std::string kFirst = LINE(4);
  const std::string kSecond = LINE(5);
  auto kernel = [] {
    if (threadIdx.x == 33) {
      __shfl_xor_sync(kAll, 1.0f, 1);
    } else {
      __ballot_sync(kAll, 1);
    }
  };
  EXPECT_DEATH(RunKernel(1, 64, kernel),
               "divergent collective\n  thread \\(32,0,0\\) in __ballot_sync at .*" + kSecond +
                   "\n  thread \\(33,0,0\\) in __shfl_xor_sync at .*" + kFirst);
}

// On one line, by a macro's counter and by a function's column.
TEST_P(MisuseTest, LanesInTwoCollectivesOfOneLine) {
  // clang-format off
  auto shuffles = [] {
    threadIdx.x % 2 == 0 ? __shfl_sync(kAll, 1, 0) : __shfl_sync(kAll, 1, 0);
  };
  auto products = [] {
    float d[4] = {};
    const uint32_t a[4] = {};
    const uint32_t b[2] = {};
    if (threadIdx.x % 2 == 0) { MmaBf16(d, a, b); } else { MmaBf16(d, a, b); }
  };
  // clang-format on
  EXPECT_DEATH(RunKernel(1, 32, shuffles), "divergent collective\n  thread \\(0,0,0\\) in __shfl");
  EXPECT_DEATH(RunKernel(1, 32, products), "divergent collective\n  thread \\(0,0,0\\) in MmaBf16");
}

TEST_P(MisuseTest, ThreadsInDifferentBlockBarriers) {
  const std::string kFirst = LINE(4);
  const std::string kSecond = LINE(5);
  auto kernel = [] {
    if (threadIdx.x >= 32) {
      __syncthreads();
    } else {
      __syncthreads();
    }
  };
  EXPECT_DEATH(RunKernel(1, 64, kernel), "divergent collective\n  thread \\(0,0,0\\) in .*" +
                                             kSecond + "\n  thread \\(32,0,0\\) in .*" + kFirst);
}

TEST_P(MisuseTest, MaskWithoutItsOwnLane) {
  EXPECT_DEATH(RunKernel(1, 32, [] { __syncwarp(0xfu); }),
               "thread \\(4,0,0\\) at .*" + LINE(-1) + ": __syncwarp with mask 0x0000000f, which");
}

// Lane 0 waits for lane 1 alone, which waits for lane 2 too: nobody is where lane 0 waits.
TEST_P(MisuseTest, MasksThatOverlap) {
  auto kernel = [] {
    unsigned lane = threadIdx.x;
    if (lane < 3) __syncwarp(lane == 0 ? 0x3u : 0x7u);
  };
  EXPECT_DEATH(RunKernel(1, 32, kernel),
               "deadlock(.|\n)*threads \\(0,0,0\\) to \\(2,0,0\\) wait in __syncwarp");
}

TEST_P(MisuseTest, WidthThatIsNoPowerOfTwo) {
  EXPECT_DEATH(RunKernel(1, 32, [] { __shfl_sync(kAll, 1, 0, 12); }), "with width 12");
  EXPECT_DEATH(RunKernel(1, 32, [] { __shfl_sync(kAll, 1, 0, 64); }), "with width 64");
}

TEST_P(MisuseTest, MatrixOperationsWithoutAllLanes) {
  auto product = [] {
    if (threadIdx.x == 3) return;
    float d[4] = {};
    const uint32_t a[4] = {};
    const uint32_t b[2] = {};
    MmaBf16(d, a, b);
  };
  EXPECT_DEATH(RunKernel(1, 32, product), "MmaBf16 needs all 32 lanes of the warp");
  EXPECT_DEATH(RunKernel(1, 16, product), "MmaBf16 needs all 32 lanes of the warp");
  // The last lane returns while all others already wait.
  auto late = [] {
    if (threadIdx.x == 31) return;
    float d[4] = {};
    const uint32_t a[4] = {};
    const uint32_t b[2] = {};
    MmaBf16(d, a, b);
  };
  EXPECT_DEATH(RunKernel(1, 32, late), "deadlock(.|\n)*to \\(30,0,0\\) wait in MmaBf16");
}

alignas(16) unsigned char g_global[64];

TEST_P(MisuseTest, AddressesThatAreNotAligned) {
  EXPECT_DEATH(RunKernel(1, 1, [] { Load16(g_global + 8); }),
               "at .*" + LINE(-1) + ": Load16 at .*not 16-byte aligned");
  EXPECT_DEATH(RunKernel(1, 1, [] { Store16(g_global + 4, Vec16{}); }),
               "at .*" + LINE(-1) + ": Store16 at .*not 16-byte aligned");
  auto copy = [](unsigned to, unsigned from) {
    KVERN_SHARED(Vec16, shared, 4);
    CpAsync16(reinterpret_cast<unsigned char*>(shared) + to, g_global + from, true);
  };
  EXPECT_DEATH(RunKernel(1, 1, [&] { copy(8, 0); }), "CpAsync16 to .*not 16-byte aligned");
  EXPECT_DEATH(RunKernel(1, 1, [&] { copy(0, 8); }), "CpAsync16 from .*not 16-byte aligned");
}

TEST_P(MisuseTest, AddressesOutsideSharedMemory) {
  EXPECT_DEATH(RunKernel(1, 1, [] { CpAsync16(g_global, g_global, true); }),
               "at .*" + LINE(-1) + ": CpAsync16 to .*not within an array in shared memory");
  auto load = [](unsigned from) {
    KVERN_DYNAMIC_SHARED(unsigned char, shared);
    uint32_t r[4];
    LdMatrixX4(r, shared + from);
  };
  EXPECT_DEATH(RunKernel(
                   1, 32, [&] { load(32); }, 40),
               "LdMatrixX4 at .*not within an array");
  EXPECT_DEATH(RunKernel(1, 32,
                         [] {
                           uint32_t r[4];
                           LdMatrixX4(r, g_global);
                         }),
               "LdMatrixX4 at .*not within an array");
}

TEST_P(MisuseTest, TooMuchSharedMemory) {
  auto one_too_many = [] {
    KVERN_SHARED(char, most, 48 * 1024);
    KVERN_SHARED(char, more, 1);
    most[0] = more[0] = 0;
  };
  EXPECT_DEATH(RunKernel(1, 1, one_too_many),
               "at .*misuse_test.cc:[0-9]+: 1 more bytes of static shared memory: at most 49152");
  auto some = [] {
    KVERN_SHARED(char, few, 16);
    few[0] = 0;
  };
  RunKernel(1, 1, some, kMaxSharedBytes - 16);
  EXPECT_DEATH(RunKernel(1, 1, some, kMaxSharedBytes - 15), "166912 in all");
}

[[gnu::noinline]] void OverflowAndExit() {
  volatile char frame[WarpStacks::kBytes];
  for (size_t i = sizeof(frame); i-- > 0;) frame[i] = 0;
  std::_Exit(0);
}

// Into a guard page, not into the stack of the thread before.
TEST_P(MisuseTest, OverflowOfAStack) {
  auto kernel = [] {
    if (threadIdx.x == 5) OverflowAndExit();
  };
  EXPECT_DEATH(RunKernel(1, 32, kernel), "");
}

TEST(LaunchShapeTest, LimitsOfAGpu) {
  auto problem = [](dim3 grid, dim3 block, size_t shared = 0) {
    const char* text = LaunchShapeProblem({grid, block, shared, "tested"});
    return std::string(text == nullptr ? "" : text);
  };
  EXPECT_EQ(problem(1, 1024), "");
  EXPECT_EQ(problem(dim3(0x7fffffff, 65535, 65535), dim3(4, 4, 64), kMaxSharedBytes), "");
  EXPECT_EQ(problem(1, 1025), "1025 threads in a block in x, at most 1024");
  EXPECT_EQ(problem(1, dim3(32, 33)), "1056 threads in a block, at most 1024");
  EXPECT_EQ(problem(1, dim3(1, 1, 65)), "65 threads in a block in z, at most 64");
  EXPECT_EQ(problem(dim3(1, 65536), 1), "65536 blocks in y, at most 65535");
  EXPECT_EQ(problem(dim3(1, 1, 65536), 1), "65536 blocks in z, at most 65535");
  EXPECT_EQ(problem(0x80000000u, 1), "2147483648 blocks in x, at most 2147483647");
  EXPECT_EQ(problem(0, 1), "a size of the grid or the block is 0");
  EXPECT_EQ(problem(1, dim3(1, 0)), "a size of the grid or the block is 0");
  EXPECT_EQ(problem(1, 1, kMaxSharedBytes + 1),
            "166913 bytes of dynamic shared memory, at most 166912");
}

TEST(LaunchShapeTest, LaunchThatAGpuWouldRefuseAborts) {
  EXPECT_DEATH(RunKernel(1, 1025, [] {}), "kernel 'tested' cannot be launched: 1025 threads");
  LaunchShape shape = {1, dim3(2, 33, 2), 0, "tested"};
  shape.max_threads = 128;
  EXPECT_DEATH(RunGrid(shape, [] {}),
               "cannot be launched: 132 threads in a block of this kernel, at most 128");
  EXPECT_DEATH(RunKernel(1, 1, [] { RunKernel(1, 1, [] {}); }),
               "cannot be launched: launched by a thread of a kernel");
}

}  // namespace
}  // namespace kvern::simt
