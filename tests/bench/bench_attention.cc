// Attention of the CPU device: one layer of SmolLM2-135M's shape (9 query heads, 3 KV heads, 64
// wide).
#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "cluster/base/check.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/device/ops.h"

namespace kvern {
namespace {

constexpr int64_t kQHeads = 9;
constexpr KvCacheShape kOneLayer{300, 1, 3, 64, DType::kBf16};

// Arguments: threads, tokens already in the cache, tokens of the step. Reports the time of one
// layer and the KV bytes read per second.
void BM_Attention(benchmark::State& state) {
  auto device = NewCpuDevice({.threads = static_cast<int>(state.range(0)), .isa = "auto"});
  KVERN_CHECK(device.ok());
  auto cache = (*device)->NewKvCache(kOneLayer);
  KVERN_CHECK(cache.ok());
  const int64_t start = state.range(1);
  const int64_t count = state.range(2);
  std::vector<uint32_t> blocks;
  for (int64_t i = 0; i * kBlockSize < start + count; ++i) {
    blocks.push_back(static_cast<uint32_t>(i * 7 % kOneLayer.num_blocks));
  }
  BatchLayout layout;
  layout.sequences.push_back({0, start, count, blocks});
  auto batch = *(*device)->NewBatch({1, 1, 1, 1, 1, 2});
  KVERN_CHECK(batch->Load(layout, 0).ok());
  const int64_t cols = kQHeads * kOneLayer.head_dim;
  std::vector<float> q(static_cast<size_t>(count * cols), 0.1f);
  std::vector<float> out(q.size());
  const Tensor q_view{q.data(), DType::kF32, count, cols, cols};
  const Tensor out_view{out.data(), DType::kF32, count, cols, cols};
  double best_seconds = 1e9;
  for (auto _ : state) {
    const auto begin = std::chrono::steady_clock::now();
    (*device)->ops().Attention(q_view, *batch, 0, **cache, out_view);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    best_seconds = std::min(best_seconds, seconds.count());
    state.SetIterationTime(seconds.count());
  }
  const double bytes = static_cast<double>(kOneLayer.BlockBytes() * blocks.size());
  state.counters["best_us"] = best_seconds * 1e6;
  state.counters["KV_GB/s"] = bytes / best_seconds * 1e-9;
}

void Cases(benchmark::internal::Benchmark* bench) {
  for (int64_t threads : {1, 2}) {
    for (int64_t context : {16, 128, 512, 1000, 4096}) bench->Args({threads, context, 1});
    bench->Args({threads, 0, 512});
    bench->Args({threads, 3500, 512});
  }
  bench->ArgNames({"threads", "context", "tokens"});
}

BENCHMARK(BM_Attention)->Apply(Cases)->UseManualTime()->MinTime(0.1)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
