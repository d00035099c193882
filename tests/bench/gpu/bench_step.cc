// Whole steps of a model on one GPU: an 8B-shaped model of random weights, decoding and prefilling,
// recorded as CUDA graphs and not, beside the time in which the GPU, as fast as it copies and
// multiplies by itself in this run, would move the bytes and do the operations that a step needs.
//   bench_step [--smoke] [--json FILE]
// FILE: a JSON object a line. --smoke: a tiny model and one step each, to see that everything runs
// (on the emulated device too).
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/base/rng.h"
#include "tests/bench/gpu/device_limits.h"
#include "tests/bench/gpu/random_bf16.h"
#include "tests/bench/gpu/report.h"
#include "worker/comm/local.h"
#include "worker/comm/nccl/load_backend.h"
#include "worker/model/decoder.h"

namespace kvern {
namespace {

using gpu::Finding;
using gpu::Number;
using gpu::Report;

// Llama 3 8B's shape.
ModelConfig LargeShape() {
  ModelConfig config;
  config.num_layers = 32;
  config.hidden_size = 4096;
  config.num_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  config.intermediate_size = 14336;
  config.vocab_size = 128256;
  config.max_seq_len = 8192;
  return config;
}

ModelConfig TinyShape() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 64;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  config.vocab_size = 256;
  config.max_seq_len = 128;
  return config;
}

// Random weights on a device, without a file. A GPU whose operands are all zero uses less power,
// and so runs faster than a model would.
class SyntheticWeights {
 public:
  SyntheticWeights(const ModelConfig& config, Device& device) : device_(device) {
    weights_.config = config;
    weights_.max_seq_len = config.max_seq_len;
  }

  absl::StatusOr<ModelWeights> Make() {
    const ModelConfig& c = weights_.config;
    KVERN_ASSIGN_OR_RETURN(const ShardCosts costs, ElementCosts(c, 1));
    KVERN_ASSIGN_OR_RETURN(std::vector<RankShard> shards, ShardModel(c, 1, 1, costs));
    weights_.shard = shards[0];
    const int64_t hidden = c.hidden_size;
    const int64_t q = int64_t{c.num_heads} * c.head_dim;
    const int64_t kv = int64_t{c.num_kv_heads} * c.head_dim;
    KVERN_ASSIGN_OR_RETURN(weights_.embedding, NewMatrix(c.vocab_size, hidden));
    KVERN_ASSIGN_OR_RETURN(weights_.output, NewMatrix(c.vocab_size, hidden));
    KVERN_ASSIGN_OR_RETURN(weights_.final_norm, NewFloats(hidden));
    for (uint32_t i = 0; i < c.num_layers; ++i) {
      LayerWeights layer;
      KVERN_ASSIGN_OR_RETURN(layer.input_norm, NewFloats(hidden));
      KVERN_ASSIGN_OR_RETURN(layer.qkv, NewMatrix(q + 2 * kv, hidden));
      KVERN_ASSIGN_OR_RETURN(layer.out, NewMatrix(hidden, q));
      KVERN_ASSIGN_OR_RETURN(layer.post_norm, NewFloats(hidden));
      KVERN_ASSIGN_OR_RETURN(layer.gate_up, NewMatrix(2 * int64_t{c.intermediate_size}, hidden));
      KVERN_ASSIGN_OR_RETURN(layer.down, NewMatrix(hidden, c.intermediate_size));
      weights_.layers.push_back(std::move(layer));
    }
    const int64_t angles = int64_t{c.max_seq_len} * c.head_dim / 2;
    KVERN_ASSIGN_OR_RETURN(weights_.rope_cos, NewFloats(angles));
    KVERN_ASSIGN_OR_RETURN(weights_.rope_sin, NewFloats(angles));
    return std::move(weights_);
  }

 private:
  absl::StatusOr<std::unique_ptr<Matrix>> NewMatrix(int64_t rows, int64_t cols) {
    constexpr int64_t kRowsAtOnce = 256;
    KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Matrix> matrix,
                           device_.NewMatrix(WeightFormat::kBf16, rows, cols));
    std::vector<uint16_t> some(static_cast<size_t>(std::min(rows, kRowsAtOnce) * cols));
    for (uint16_t& bits : some) bits = gpu::RandomBf16(rng_);
    for (int64_t row = 0; row < rows; row += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, rows - row);
      const std::span<const uint16_t> part(some.data(), static_cast<size_t>(count * cols));
      KVERN_RETURN_IF_ERROR(matrix->SetRows(row, count, FileDtype::kBf16, std::as_bytes(part)));
    }
    return matrix;
  }
  absl::StatusOr<std::unique_ptr<Buffer>> NewFloats(int64_t count) {
    const std::vector<float> values(static_cast<size_t>(count), 0.7f);
    KVERN_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                           device_.Allocate(values.size() * sizeof(float)));
    KVERN_RETURN_IF_ERROR(
        device_.CopyToDevice(buffer->data(), values.data(), values.size() * sizeof(float)));
    return buffer;
  }

  Device& device_;
  Rng rng_{1};
  ModelWeights weights_;
};

// A step of `batch` sequences, `tokens` each, behind `context` cached tokens.
struct StepShape {
  int64_t batch = 1;
  int64_t context = 0;
  int64_t tokens = 1;
};

struct Step {
  explicit Step(const StepShape& shape) {
    const int64_t blocks = (shape.context + shape.tokens + kBlockSize - 1) / kBlockSize;
    tables.resize(static_cast<size_t>(shape.batch));
    uint32_t next_block = 0;
    for (int64_t s = 0; s < shape.batch; ++s) {
      auto& table = tables[static_cast<size_t>(s)];
      for (int64_t i = 0; i < blocks; ++i) table.push_back(next_block++);
      for (int64_t t = 0; t < shape.tokens; ++t) {
        layout.token_ids.push_back(static_cast<uint32_t>(1 + (s + t) % 200));
        layout.positions.push_back(static_cast<uint32_t>(shape.context + t));
      }
      layout.sequences.push_back({s * shape.tokens, shape.context, shape.tokens, table});
      layout.logit_rows.push_back((s + 1) * shape.tokens - 1);
    }
  }
  std::vector<std::vector<uint32_t>> tables;
  BatchLayout layout;
};

// What a step cannot do without: parameters and cached tokens read once, two operations for each
// parameter and token, four for each query, key and element of their heads.
struct Needs {
  double bytes = 0;
  double flops = 0;
};

Needs NeedsOf(const ModelWeights& weights, const StepShape& shape) {
  const ModelConfig& c = weights.config;
  const auto batch = static_cast<double>(shape.batch);
  const auto tokens = static_cast<double>(shape.tokens);
  const auto context = static_cast<double>(shape.context);
  // The embedding is read for a few rows only; logits are computed for one row of a sequence.
  const auto output = static_cast<double>(weights.output->bytes());
  const auto all = static_cast<double>(weights.bytes() - weights.embedding->bytes());
  const double layers = c.num_layers;
  const double head_dim = c.head_dim;
  Needs needs;
  needs.bytes = all + batch * (context + tokens) * layers * c.num_kv_heads * head_dim * 4;
  needs.flops = batch * (tokens * (all - output) + output);  // a parameter is two bytes
  needs.flops +=
      batch * tokens * (context + (tokens + 1) / 2) * layers * c.num_heads * head_dim * 4;
  return needs;
}

// Everything on the device; made anew after a step that failed, for its device stays failed.
struct Loaded {
  std::unique_ptr<Device> device;
  ModelWeights weights;
  std::unique_ptr<Communicator> comm;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Decoder> decoder;
};

class Bench {
 public:
  Bench(const GpuBackend& backend, bool smoke, Report& report)
      : backend_(backend),
        config_(smoke ? TinyShape() : LargeShape()),
        smoke_(smoke),
        report_(report) {}

  void Run() {
    limits_ = gpu::MeasureLimits(smoke_, report_);
    for (bool graphs : {false, true}) {
      for (const StepShape& step : Shapes()) {
        if (graphs && step.tokens > 1) continue;
        if (absl::Status status = Prepare(graphs); !status.ok()) {
          // Nor will it be there for the others.
          return report_.Failed(Given(step, graphs), std::string(status.message()));
        }
        if (absl::Status status = Measure(step, graphs); !status.ok()) {
          report_.Failed(Given(step, graphs), std::string(status.message()));
          loaded_.reset();
        }
      }
      if (loaded_ != nullptr) loaded_->decoder.reset();
    }
  }

 private:
  std::vector<StepShape> Shapes() const {
    if (smoke_) return {{2, 40, 1}, {1, 0, 20}};
    return {{1, 1023, 1}, {8, 1023, 1}, {64, 1023, 1}, {1, 7999, 1}, {1, 0, 512}, {1, 0, 2048}};
  }

  static Finding Given(const StepShape& shape, bool graphs) {
    return {shape.tokens == 1 ? "step_decode" : "step_prefill",
            {{"graphs", graphs ? "true" : "false"},
             {"batch", absl::StrCat(shape.batch)},
             {"context", absl::StrCat(shape.context)},
             {"tokens", absl::StrCat(shape.tokens)}}};
  }

  // What is not there yet.
  absl::Status Prepare(bool graphs) {
    if (loaded_ == nullptr) {
      auto loaded = std::make_unique<Loaded>();
      KVERN_ASSIGN_OR_RETURN(loaded->device, backend_.NewDevice({0, 2, false}));
      KVERN_ASSIGN_OR_RETURN(loaded->weights, SyntheticWeights(config_, *loaded->device).Make());
      loaded->comm = std::move(NewLocalGroup(1)[0]);
      // As much as the largest of Shapes().
      const KvCacheShape shape{smoke_ ? 64 : 4096, config_.num_layers, config_.num_kv_heads,
                               config_.head_dim, DType::kBf16};
      KVERN_ASSIGN_OR_RETURN(loaded->cache, loaded->device->NewKvCache(shape));
      loaded_ = std::move(loaded);
    }
    if (loaded_->decoder != nullptr) return absl::OkStatus();
    KVERN_ASSIGN_OR_RETURN(
        loaded_->decoder,
        Decoder::Create(&loaded_->weights, loaded_->device.get(), loaded_->comm.get(),
                        {smoke_ ? 64 : 2048, smoke_ ? 8 : 64, graphs}));
    return absl::OkStatus();
  }

  absl::Status Measure(const StepShape& shape, bool graphs) {
    const Step step(shape);
    double best = INFINITY;
    // The first two choose algorithms and record.
    for (int i = 0; i < (smoke_ ? 3 : 22); ++i) {
      const auto start = std::chrono::steady_clock::now();
      KVERN_RETURN_IF_ERROR(loaded_->decoder->Forward(step.layout, *loaded_->cache).status());
      KVERN_RETURN_IF_ERROR(loaded_->device->Synchronize());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      if (i >= 2) best = std::min(best, seconds.count());
    }
    const Needs needs = NeedsOf(loaded_->weights, shape);
    Finding finding = Given(shape, graphs);
    const auto add = [&](const char* name, double value) {
      finding.values.emplace_back(name, Number(value));
    };
    add("ms", best * 1e3);
    add("tokens/s", static_cast<double>(shape.batch * shape.tokens) / best);
    add("GB/s", needs.bytes / best * 1e-9);
    add("TFLOP/s", needs.flops / best * 1e-12);
    if (limits_.bytes_per_second > 0 && limits_.flops_per_second > 0) {
      const double least =
          std::max(needs.bytes / limits_.bytes_per_second, needs.flops / limits_.flops_per_second);
      add("roofline_ms", least * 1e3);
      add("share_of_roofline", least / best);
    }
    report_.Add(finding);
    return absl::OkStatus();
  }

  const GpuBackend& backend_;
  const ModelConfig config_;
  const bool smoke_;
  Report& report_;
  gpu::DeviceLimits limits_;
  std::unique_ptr<Loaded> loaded_;
};

// The kind of GPU for which this was built.
absl::StatusOr<const GpuBackend*> Backend() {
#ifdef __CUDACC__
  return CudaBackend();
#else
  return &EmulatedBackend();
#endif
}

int Run(bool smoke, const std::string& json_path) {
  Report report(json_path);
  if (absl::StatusOr<const GpuBackend*> backend = Backend(); backend.ok()) {
    Bench(**backend, smoke, report).Run();
  } else {
    report.Failed({"device", {}}, std::string(backend.status().message()));
  }
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) {
  bool smoke = false;
  std::string json_path;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--smoke") == 0) {
      smoke = true;
    } else if (std::strcmp(argv[i], "--json") == 0 && i + 1 < argc) {
      json_path = argv[++i];
    } else {
      std::fprintf(stderr, "bench_step: '%s', allowed: --smoke, --json FILE\n", argv[i]);
      return 2;
    }
  }
  return kvern::Run(smoke, json_path);
}
