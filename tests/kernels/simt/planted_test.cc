// Kernels with a bug that is not seen in their results, or only by chance, each beside its twin
// without it. A build with ThreadSanitizer must find the bugs of order, one with AddressSanitizer
// those of bounds; no build may find anything in a twin, and the twins' results are right.
#include <cuda_runtime.h>

#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "tests/kernels/simt/emulated_kernel.h"

namespace kvern::simt {
namespace {

using gpu::CpAsync16;
using gpu::CpAsyncCommit;
using gpu::CpAsyncWait;
using gpu::LdMatrixX4;
using gpu::Load16;
using gpu::Vec16;

#if defined(KVERN_SIMT_TSAN)
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif
#if defined(KVERN_SIMT_ASAN)
constexpr bool kFindsBounds = true;
#else
constexpr bool kFindsBounds = false;
#endif

// Runs with and without the bug, in child processes so that a report ends only those. `program`
// returns whether its result is right.
class PlantedTest : public testing::Test {
 protected:
  // Children that are only forked would do: but ThreadSanitizer takes fibers for threads, and after
  // a fork with threads it stops looking.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  template <typename Program>
  void ExpectRace(Program program) {
    EXPECT_TRUE(program(false));
    if (!kFindsRaces) return;
    EXPECT_EXIT(std::exit(program(false) ? 0 : 1), testing::ExitedWithCode(0), "");
    EXPECT_EXIT(
        {
          program(true);
          std::exit(0);
        },
        testing::ExitedWithCode(66), "ThreadSanitizer: data race");
  }

  template <typename Program>
  void ExpectOutOfBounds(Program program) {
    EXPECT_TRUE(program(false));
    if (!kFindsBounds) return;
    EXPECT_EXIT(std::exit(program(false) ? 0 : 1), testing::ExitedWithCode(0), "");
    const char* const kReport = "AddressSanitizer: (use-after-poison|heap-buffer-overflow)";
    EXPECT_DEATH(program(true), kReport);
    // In the first launch of an OS thread as in later ones.
    EXPECT_DEATH(std::thread([&] { program(true); }).join(), kReport);
  }
};

constexpr unsigned kThreads = 64;

// A thread reads what the next one of its warp wrote: without the barrier in between.
TEST_F(PlantedTest, MissingSyncThreads) {
  ExpectRace([](bool bug) {
    std::vector<unsigned> next(kThreads);
    RunKernel(1, kThreads, [&] {
      KVERN_SHARED(unsigned, line, kThreads);
      line[threadIdx.x] = threadIdx.x;
      if (!bug) __syncthreads();
      next[threadIdx.x] = line[(threadIdx.x + kThreads - 1) % kThreads];
    });
    for (unsigned i = 0; i < kThreads; ++i) {
      if (next[i] != (i + kThreads - 1) % kThreads) return false;
    }
    return true;
  });
}

// Shared memory is written again while others may still read what was there.
TEST_F(PlantedTest, MissingSyncThreadsBeforeReuse) {
  ExpectRace([](bool bug) {
    bool right = true;
    RunKernel(1, kThreads, [&] {
      KVERN_SHARED(unsigned, line, kThreads);
      unsigned value = threadIdx.x;
      for (int round = 0; round < 3; ++round) {
        line[threadIdx.x] = value;
        __syncthreads();
        value = line[(threadIdx.x + 1) % kThreads];
        if (!bug) __syncthreads();
      }
      if (threadIdx.x == 0) right = value == 3;
    });
    return right;
  });
}

// A barrier of a warp orders only the warp.
TEST_F(PlantedTest, SyncWarpWhereTheBlockHasToWait) {
  ExpectRace([](bool bug) {
    bool right = true;
    RunKernel(1, kThreads, [&] {
      KVERN_SHARED(unsigned, line, kThreads);
      line[threadIdx.x] = threadIdx.x;
      if (bug) {
        __syncwarp();
      } else {
        __syncthreads();
      }
      unsigned other = line[(threadIdx.x + 32) % kThreads];
      if (threadIdx.x == 0) right = other == 32;
    });
    return right;
  });
}

// Shuffles and votes are no barriers.
TEST_F(PlantedTest, ShuffleInsteadOfSyncWarp) {
  ExpectRace([](bool bug) {
    bool right = true;
    RunKernel(1, 32, [&] {
      KVERN_SHARED(unsigned, line, 32);
      line[threadIdx.x] = threadIdx.x;
      unsigned all = __ballot_sync(~0u, 1);
      unsigned value = __shfl_xor_sync(all, threadIdx.x, 1);
      if (!bug) __syncwarp();
      if (line[threadIdx.x ^ 1] != value && threadIdx.x == 0) right = false;
    });
    return right;
  });
}

// The wait completes the copies of the thread that waits; others need a barrier after it.
TEST_F(PlantedTest, MissingSyncWarpAfterAsyncWait) {
  ExpectRace([](bool bug) {
    alignas(16) unsigned source[32 * 4];
    for (unsigned i = 0; i < 32 * 4; ++i) source[i] = i;
    bool right = true;
    RunKernel(1, 32, [&] {
      KVERN_SHARED(Vec16, line, 32);
      CpAsync16(line + threadIdx.x, source + threadIdx.x * 4, true);
      CpAsyncCommit();
      CpAsyncWait<0>();
      if (!bug) __syncwarp();
      unsigned value = line[(threadIdx.x + 31) % 32].word[0];
      if (threadIdx.x == 0) right = value == 31 * 4;
    });
    return right;
  });
}

// Two stages: the copy into a stage is issued while other lanes may still read its last contents.
TEST_F(PlantedTest, StageReusedTooEarly) {
  ExpectRace([](bool bug) {
    constexpr unsigned kSteps = 6;
    std::vector<Vec16> source(kSteps * 32);
    for (unsigned i = 0; i < source.size(); ++i) source[i].word[0] = i;
    unsigned sum = 0;
    RunKernel(1, 32, [&] {
      KVERN_SHARED(Vec16, stages, 2 * 32);
      unsigned lane = threadIdx.x;
      auto fetch = [&](unsigned step) {
        if (step < kSteps)
          CpAsync16(&stages[step % 2 * 32 + lane], &source[step * 32 + lane], true);
        CpAsyncCommit();
      };
      fetch(0);
      unsigned own = 0;
      for (unsigned step = 0; step < kSteps; ++step) {
        fetch(step + 1);
        CpAsyncWait<1>();
        __syncwarp();
        own += stages[step % 2 * 32 + (lane + 1) % 32].word[0];
        if (!bug) __syncwarp();
      }
      atomicAdd(&sum, own);
    });
    return sum == kSteps * 32 * (kSteps * 32 - 1) / 2;
  });
}

// Each lane loads a row that another lane wrote.
TEST_F(PlantedTest, MissingSyncWarpBeforeLdMatrix) {
  ExpectRace([](bool bug) {
    bool right = true;
    RunKernel(1, 32, [&] {
      KVERN_SHARED(Vec16, rows, 32);
      for (uint32_t& word : rows[threadIdx.x].word) word = threadIdx.x;
      if (!bug) __syncwarp();
      uint32_t r[4];
      LdMatrixX4(r, &rows[threadIdx.x ^ 1]);
      if (threadIdx.x == 0) right = r[0] == 1 && r[3] == 25;
    });
    return right;
  });
}

// Nothing orders the blocks of one launch.
TEST_F(PlantedTest, BlockReadsWhatAnotherBlockWrote) {
  ExpectRace([](bool bug) {
    std::vector<unsigned> data(2 * 32, 0);
    bool right = true;
    auto write = [&] { data[blockIdx.x * 32 + threadIdx.x] = blockIdx.x + 1; };
    auto read = [&] {
      unsigned other = data[(blockIdx.x ^ 1) * 32 + (threadIdx.x ^ 1)];
      if (blockIdx.x == 1 && threadIdx.x == 0) right = other == 1;
    };
    if (bug) {
      RunKernel(2, 32, [&] {
        write();
        read();
      });
    } else {
      RunKernel(2, 32, write);
      RunKernel(2, 32, read);
    }
    return right;
  });
}

// The same threads of two blocks write the same place.
TEST_F(PlantedTest, BlockNumberForgotten) {
  ExpectRace([](bool bug) {
    std::vector<unsigned> data(3 * 32, 0);
    RunKernel(3, 32, [&] { data[(bug ? 0 : blockIdx.x * 32) + threadIdx.x] = blockIdx.x + 1; });
    return data[0] == 1 && data[95] == 3;
  });
}

// Two ranks: a flag alone does not publish the data, the fences around it do.
TEST_F(PlantedTest, FlagWithoutFences) {
  ExpectRace([](bool bug) {
    unsigned flag = 0;
    unsigned data = 0;
    unsigned seen = 0;
    std::thread producer([&] {
      RunKernel(1, 32, [&] {
        if (threadIdx.x != 7) return;
        data = 42;
        if (!bug) __threadfence();
        atomicExch(&flag, 1u);
      });
    });
    RunKernel(1, 32, [&] {
      if (threadIdx.x != 0) return;
      while (atomicAdd(&flag, 0u) == 0) __nanosleep(20);
      if (!bug) __threadfence();
      seen = data;
    });
    producer.join();
    return seen == 42;
  });
}

TEST_F(PlantedTest, ReadBeyondDynamicSharedMemory) {
  ExpectOutOfBounds([](bool bug) {
    RunKernel(
        1, 32,
        [&] {
          KVERN_DYNAMIC_SHARED(unsigned, line);
          line[threadIdx.x] = threadIdx.x;
          __syncthreads();
          volatile unsigned next = line[bug ? threadIdx.x + 1 : threadIdx.x];
          (void)next;
        },
        32 * sizeof(unsigned));
    return true;
  });
}

TEST_F(PlantedTest, WriteBeyondStaticSharedMemory) {
  ExpectOutOfBounds([](bool bug) {
    RunKernel(2, 32, [&] {
      KVERN_SHARED(unsigned char, odd, 31);
      unsigned char* line = odd;
      KVERN_SHARED(unsigned char, neighbour, 32);
      neighbour[threadIdx.x] = 0;
      // Only in the second block: what the first one asked for must be forgotten.
      if (threadIdx.x < 31 || (bug && blockIdx.x == 1)) line[threadIdx.x] = 1;
    });
    return true;
  });
}

// The arrays of one block are not those of the next one.
TEST_F(PlantedTest, ArrayOfABlockBefore) {
  ExpectOutOfBounds([](bool bug) {
    unsigned* kept[2] = {};
    RunKernel(2, 1, [&] {
      KVERN_SHARED(unsigned, first, 1);
      if (blockIdx.x == 0) {
        KVERN_SHARED(unsigned, second, 1);
        kept[0] = second;
      } else {
        kept[1] = first;
      }
      *kept[bug ? 0 : blockIdx.x] = 1;
    });
    return true;
  });
}

TEST_F(PlantedTest, CopiesFromBeyondGlobalMemory) {
  ExpectOutOfBounds([](bool bug) {
    auto source = std::make_unique<Vec16[]>(32);
    RunKernel(1, 32, [&] {
      KVERN_SHARED(Vec16, line, 32);
      CpAsync16(&line[threadIdx.x], &source[threadIdx.x] + (bug ? 1 : 0), true);
    });
    return true;
  });
  ExpectOutOfBounds([](bool bug) {
    auto source = std::make_unique<Vec16[]>(32);
    RunKernel(1, 32, [&] { Load16(&source[threadIdx.x] + (bug ? 1 : 0)); });
    return true;
  });
}

// Memory of cudaMalloc ends where it was asked to end, whatever it is aligned to.
TEST_F(PlantedTest, AroundDeviceMemory) {
  constexpr int kBytes = 1000;
  for (const int wrong : {kBytes, kBytes + 500, -1}) {
    ExpectOutOfBounds([wrong](bool bug) {
      void* memory = nullptr;
      if (cudaMalloc(&memory, kBytes) != cudaSuccess) return false;
      auto* bytes = static_cast<unsigned char*>(memory);
      RunKernel(1, 1, [&] { bytes[bug ? wrong : kBytes - 1] = 7; });
      const bool right = bytes[kBytes - 1] == 7;
      return cudaFree(memory) == cudaSuccess && right;
    });
  }
}

}  // namespace
}  // namespace kvern::simt
