// The decoder end to end on the real model: decode steps at batch 1 and 8 and at context 16 and
// 1,000, and a prefill of 512 tokens; one rank with two threads, two ranks with one. Decoding is
// bound by memory, so each figure stands beside what reading memory reaches at that moment.
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "cluster/base/check.h"
#include "schemas/files/checkpoint.h"
#include "tests/bench/bandwidth_probe.h"
#include "worker/comm/local.h"
#include "worker/device/cpu/cpu_device.h"
#include "worker/model/decoder.h"

namespace kvern {
namespace {

constexpr int64_t kMaxContext = 1040;
constexpr int64_t kMaxBatch = 8;

std::string ModelPath() {
  const char* path = std::getenv("KVERN_MODEL");
  return path != nullptr ? path : "models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

struct Rank {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<ModelWeights> weights;
  std::unique_ptr<Decoder> decoder;
  std::unique_ptr<KvCache> cache;
};

// A whole group in this process; two threads in all.
class Group {
 public:
  Group(WeightChoice choice, int world) {
    auto checkpoint = Checkpoint::Open(ModelPath());
    KVERN_CHECK(checkpoint.ok()) << checkpoint.status().ToString() << "; run tools/fetch_model";
    config_ = (*checkpoint)->config();
    auto comms = NewLocalGroup(world);
    for (int r = 0; r < world; ++r) {
      Rank rank;
      rank.device = NewCpuDevice({.threads = 2 / world}).value();
      rank.comm = std::move(comms[static_cast<size_t>(r)]);
      auto start = std::chrono::steady_clock::now();
      rank.weights =
          LoadWeights(**checkpoint, choice, r, world, config_.max_seq_len, *rank.device).value();
      std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      load_seconds_ = std::max(load_seconds_, seconds.count());
      rank.decoder = Decoder::Create(rank.weights.get(), rank.device.get(), rank.comm.get(),
                                     {.max_tokens = 512, .max_logit_rows = kMaxBatch})
                         .value();
      KvCacheShape shape{kMaxBatch * kMaxContext / kBlockSize, config_.num_layers,
                         rank.weights->shard.kv_heads.size(), config_.head_dim, DType::kBf16};
      rank.cache = rank.device->NewKvCache(shape).value();
      ranks_.push_back(std::move(rank));
    }
  }

  // `batch` sequences, each with `count` tokens from position `start`; all ranks at once, `steps`
  // times.
  void Forward(int64_t batch, int64_t start, int64_t count, int steps) {
    std::vector<std::thread> peers;
    for (size_t r = 1; r < ranks_.size(); ++r) {
      peers.emplace_back([=, this] { RunRank(ranks_[r], batch, start, count, steps); });
    }
    RunRank(ranks_[0], batch, start, count, steps);
    for (std::thread& peer : peers) peer.join();
  }

  const ModelConfig& config() const { return config_; }
  double load_seconds() const { return load_seconds_; }
  // What a step of few tokens reads: all weights but the rope tables and, if separate, the
  // embedding.
  double WeightBytes() const {
    double bytes = 0;
    for (const Rank& rank : ranks_) {
      const ModelWeights& w = *rank.weights;
      bytes += static_cast<double>(w.bytes() - w.rope_cos->bytes() - w.rope_sin->bytes());
      if (w.output) bytes -= static_cast<double>(w.embedding->bytes());
    }
    return bytes;
  }
  double KvBytes() const {  // of one token
    return static_cast<double>(
        KvBytesPerToken(config_.num_layers, config_.num_kv_heads, config_.head_dim, 2));
  }

 private:
  static void RunRank(Rank& rank, int64_t batch, int64_t start, int64_t count, int steps) {
    std::vector<std::vector<uint32_t>> tables(static_cast<size_t>(batch));
    BatchLayout layout;
    uint32_t next_block = 0;
    for (int64_t s = 0; s < batch; ++s) {
      auto& table = tables[static_cast<size_t>(s)];
      for (int64_t t = 0; t < kMaxContext; t += kBlockSize) table.push_back(next_block++);
      for (int64_t t = 0; t < count; ++t) {
        layout.token_ids.push_back(static_cast<uint32_t>(1000 + s + t));
        layout.positions.push_back(static_cast<uint32_t>(start + t));
      }
      layout.sequences.push_back({s * count, start, count, table});
      layout.logit_rows.push_back((s + 1) * count - 1);
    }
    for (int i = 0; i < steps; ++i) {
      KVERN_CHECK(rank.decoder->Forward(layout, *rank.cache).ok());
    }
  }

  ModelConfig config_;
  std::vector<Rank> ranks_;
  double load_seconds_ = 0;
};

Group& GroupOf(WeightChoice choice, int world) {
  // One at a time: the memory of four would not fit small machines.
  static std::unique_ptr<Group> group;
  static int key = -1;
  int wanted = static_cast<int>(choice) * 10 + world;
  if (key != wanted) {
    group.reset();
    group = std::make_unique<Group>(choice, world);
    key = wanted;
  }
  return *group;
}

BandwidthProbe& Probe() {
  static BandwidthProbe probe;
  return probe;
}

// Arguments: weights (WeightChoice), ranks, batch, context. The best of the iterations counts,
// beside the best of the probes between them.
void BM_Decode(benchmark::State& state) {
  Group& group =
      GroupOf(static_cast<WeightChoice>(state.range(0)), static_cast<int>(state.range(1)));
  int64_t batch = state.range(2);
  int64_t context = state.range(3);
  constexpr int kSteps = 8;
  group.Forward(batch, context, 1, 1);
  double best = 1e9;
  double bandwidth = 0;
  for (auto _ : state) {
    auto start = std::chrono::steady_clock::now();
    group.Forward(batch, context, 1, kSteps);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count() / kSteps);
    state.PauseTiming();
    bandwidth = std::max(bandwidth, Probe().Measure(2, 1));
    state.ResumeTiming();
  }
  double bytes = group.WeightBytes() + static_cast<double>(batch * context) * group.KvBytes();
  state.counters["tokens/s"] = static_cast<double>(batch) / best;
  state.counters["GB/s"] = bytes / best * 1e-9;
  state.counters["probe_GB/s"] = bandwidth * 1e-9;
  state.counters["share"] = bytes / best / bandwidth;
  state.counters["load_s"] = group.load_seconds();
}

// Arguments: weights, ranks. 512 tokens of one prompt, the output matrix for the last one only.
void BM_Prefill512(benchmark::State& state) {
  Group& group =
      GroupOf(static_cast<WeightChoice>(state.range(0)), static_cast<int>(state.range(1)));
  const ModelConfig& config = group.config();
  double best = 1e9;
  for (auto _ : state) {
    auto start = std::chrono::steady_clock::now();
    group.Forward(1, 0, 512, 1);
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  double head_columns = 2.0 * (config.num_heads + config.num_kv_heads) * config.head_dim;
  double layer = (head_columns + 3.0 * config.intermediate_size) * config.hidden_size;
  // Two operations per weight and token; scores and values over on average half of 512 keys.
  double attention = 4.0 * 256 * config.num_heads * config.head_dim;
  double flops = 512.0 * config.num_layers * (2 * layer + attention);
  state.counters["tokens/s"] = 512 / best;
  state.counters["GFLOP/s"] = flops / best * 1e-9;
}

constexpr auto kBf16 = static_cast<int64_t>(WeightChoice::kBf16);
constexpr auto kInt4 = static_cast<int64_t>(WeightChoice::kInt4);

void EachGroup(benchmark::internal::Benchmark* bench,
               const std::vector<std::vector<int64_t>>& shapes) {
  for (int64_t weights : {kBf16, kInt4}) {
    for (int64_t world : {1, 2}) {
      for (std::vector<int64_t> args : shapes) {
        args.insert(args.begin(), {weights, world});
        bench->Args(args);
      }
    }
  }
}

BENCHMARK(BM_Decode)
    ->Apply([](benchmark::internal::Benchmark* b) {
      EachGroup(b, {{1, 16}, {1, 1000}, {8, 16}, {8, 1000}});
    })
    ->ArgNames({"weights", "ranks", "batch", "context"})
    ->Iterations(5)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(BM_Prefill512)
    ->Apply([](benchmark::internal::Benchmark* b) { EachGroup(b, {{}}); })
    ->ArgNames({"weights", "ranks"})
    ->Iterations(3)
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace kvern

BENCHMARK_MAIN();
