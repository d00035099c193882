// What the emulator of CUDA costs: threads started, switches, collectives, matrix products. Time
// per lane or warp is what bounds the emulated device in tests.
#include <cstdint>

#include "benchmark/benchmark.h"
#include "kernels/simt/grid.h"
#include "kernels/simt/language.h"

namespace kvern::simt {
namespace {

constexpr int kRounds = 1000;
constexpr uint32_t kAll = ~0u;

void SetUpFibers(const benchmark::State& state) {
  UseFibers(state.range(0) == 0 ? DefaultFiberKind() : FiberKind::kUcontext);
}

// Reports the time of one of `count` items that each iteration has.
void SetPerItem(benchmark::State& state, double count) {
  state.counters["per_item"] = benchmark::Counter(
      count, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void BM_EmptyThreads(benchmark::State& state) {
  SetUpFibers(state);
  for (auto _ : state) RunGrid({16, 256, 0, "empty"}, [] {});
  SetPerItem(state, 16 * 256);
}

void BM_SyncThreads256(benchmark::State& state) {
  SetUpFibers(state);
  for (auto _ : state) {
    RunGrid({1, 256, 0, "sync"}, [] {
      for (int i = 0; i < kRounds; ++i) __syncthreads();
    });
  }
  SetPerItem(state, kRounds);
}

// Per lane.
void BM_Shuffle(benchmark::State& state) {
  SetUpFibers(state);
  for (auto _ : state) {
    RunGrid({1, 128, 0, "shuffle"}, [] {
      float value = static_cast<float>(threadIdx.x);
      for (int i = 0; i < kRounds; ++i) value = __shfl_xor_sync(kAll, value, 1);
      benchmark::DoNotOptimize(value);
    });
  }
  SetPerItem(state, 128.0 * kRounds);
}

// Per warp.
void BM_LdMatrix(benchmark::State& state) {
  SetUpFibers(state);
  for (auto _ : state) {
    RunGrid({1, 128, 0, "ldmatrix"}, [] {
      KVERN_SHARED(gpu::Vec16, rows, 128);
      uint32_t r[4];
      for (int i = 0; i < kRounds; ++i) gpu::LdMatrixX4(r, &rows[threadIdx.x]);
      benchmark::DoNotOptimize(r);
    });
  }
  SetPerItem(state, 4.0 * kRounds);
}

// Per warp: 4096 operations each.
void BM_Mma(benchmark::State& state) {
  SetUpFibers(state);
  for (auto _ : state) {
    RunGrid({1, 128, 0, "mma"}, [] {
      float d[4] = {};
      const uint32_t a[4] = {gpu::PackBf16(1, 2), gpu::PackBf16(3, 4), 0, 0};
      const uint32_t b[2] = {gpu::PackBf16(1, -1), 0};
      for (int i = 0; i < kRounds; ++i) gpu::MmaBf16(d, a, b);
      benchmark::DoNotOptimize(d);
    });
  }
  SetPerItem(state, 4.0 * kRounds);
}

// Per 16 bytes, issue and wait.
void BM_AsyncCopy(benchmark::State& state) {
  SetUpFibers(state);
  static gpu::Vec16 source[128];
  for (auto _ : state) {
    RunGrid({1, 128, 0, "copy"}, [] {
      KVERN_SHARED(gpu::Vec16, line, 128);
      for (int i = 0; i < kRounds; ++i) {
        gpu::CpAsync16(&line[threadIdx.x], &source[threadIdx.x], true);
        gpu::CpAsyncCommit();
        gpu::CpAsyncWait<0>();
      }
    });
  }
  SetPerItem(state, 128.0 * kRounds);
}

// 0: the machine's own switch, 1: ucontext.
BENCHMARK(BM_EmptyThreads)->Arg(0)->Arg(1);
BENCHMARK(BM_SyncThreads256)->Arg(0)->Arg(1);
BENCHMARK(BM_Shuffle)->Arg(0)->Arg(1);
BENCHMARK(BM_LdMatrix)->Arg(0)->Arg(1);
BENCHMARK(BM_Mma)->Arg(0)->Arg(1);
BENCHMARK(BM_AsyncCopy)->Arg(0)->Arg(1);

}  // namespace
}  // namespace kvern::simt

BENCHMARK_MAIN();
