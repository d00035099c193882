// Whole steps of a model on one GPU: an 8B-shaped model of random weights, decoding and prefilling,
// recorded as CUDA graphs and not, beside the bytes and operations that a step needs.
//   bench_step [--device cuda|emulated] [--smoke] [--json FILE]
// --smoke: a tiny model and one step each, to see that everything runs.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "cluster/base/rng.h"
#include "tests/bench/gpu/random_bf16.h"
#include "tests/bench/gpu/report.h"
#include "worker/comm/local.h"
#include "worker/comm/nccl/load_backend.h"
#include "worker/model/decoder.h"

namespace kvern {
namespace {

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
    KVERN_ASSIGN_OR_RETURN(std::vector<RankShard> shards, ShardModel(c, 1, 1));
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

class Bench {
 public:
  Bench(const ModelConfig& config, bool smoke, Report& report)
      : config_(config), smoke_(smoke), report_(report) {}

  absl::Status Run(const GpuBackend& backend) {
    KVERN_ASSIGN_OR_RETURN(device_, backend.NewDevice({0, 2, false}));
    KVERN_ASSIGN_OR_RETURN(weights_, SyntheticWeights(config_, *device_).Make());
    comm_ = std::move(NewLocalGroup(1)[0]);
    KvCacheShape shape{smoke_ ? 64 : 10'000, config_.num_layers, config_.num_kv_heads,
                       config_.head_dim, DType::kBf16};
    KVERN_ASSIGN_OR_RETURN(cache_, device_->NewKvCache(shape));
    for (bool graphs : {false, true}) {
      KVERN_ASSIGN_OR_RETURN(auto decoder,
                             Decoder::Create(&weights_, device_.get(), comm_.get(),
                                             {smoke_ ? 64 : 2048, smoke_ ? 8 : 64, graphs}));
      for (const StepShape& step : Shapes()) {
        if (graphs && step.tokens > 1) continue;
        KVERN_RETURN_IF_ERROR(Measure(*decoder, step, graphs));
      }
    }
    return absl::OkStatus();
  }

 private:
  std::vector<StepShape> Shapes() const {
    if (smoke_) return {{2, 40, 1}, {1, 0, 20}};
    return {{1, 1023, 1}, {8, 1023, 1}, {64, 1023, 1}, {1, 7999, 1}, {1, 0, 512}, {1, 0, 2048}};
  }

  absl::Status Measure(Decoder& decoder, const StepShape& shape, bool graphs) {
    const Step step(shape);
    double best = INFINITY;
    // The first two choose algorithms and record.
    for (int i = 0; i < (smoke_ ? 3 : 22); ++i) {
      const auto start = std::chrono::steady_clock::now();
      KVERN_RETURN_IF_ERROR(decoder.Forward(step.layout, *cache_).status());
      KVERN_RETURN_IF_ERROR(device_->Synchronize());
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
      if (i >= 2) best = std::min(best, seconds.count());
    }
    const double tokens = static_cast<double>(shape.batch * shape.tokens);
    const double kv_tokens = static_cast<double>(shape.batch * (shape.context + shape.tokens));
    const double kv_bytes = 4.0 * config_.num_layers * config_.num_kv_heads * config_.head_dim;
    // The embedding is read for a few rows only.
    const double weights = static_cast<double>(weights_.bytes() - weights_.embedding->bytes());
    report_.Add({shape.tokens == 1 ? "step_decode" : "step_prefill",
                 {{"graphs", graphs ? "true" : "false"},
                  {"batch", absl::StrCat(shape.batch)},
                  {"context", absl::StrCat(shape.context)},
                  {"tokens", absl::StrCat(shape.tokens)},
                  {"ms", Number(best * 1e3)},
                  {"tokens/s", Number(tokens / best)},
                  {"GB/s", Number((weights + kv_tokens * kv_bytes) / best * 1e-9)},
                  {"TFLOP/s", Number(weights * tokens / best * 1e-12)}}});
    return absl::OkStatus();
  }

  const ModelConfig config_;
  const bool smoke_;
  Report& report_;
  std::unique_ptr<Device> device_;
  ModelWeights weights_;
  std::unique_ptr<Communicator> comm_;
  std::unique_ptr<KvCache> cache_;
};

int Run(bool emulated, bool smoke, const std::string& json_path) {
  Report report;
  absl::StatusOr<const GpuBackend*> backend = &EmulatedBackend();
  if (!emulated) backend = CudaBackend();
  absl::Status status = backend.status();
  if (status.ok()) status = Bench(smoke ? TinyShape() : LargeShape(), smoke, report).Run(**backend);
  if (!status.ok()) report.Failed("step", std::string(status.message()));
  if (!json_path.empty()) std::ofstream(json_path) << report.Json();
  return report.failures() == 0 ? 0 : 1;
}

}  // namespace
}  // namespace kvern

int main(int argc, char** argv) {
  bool smoke = false;
  bool emulated = false;
  std::string json_path;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    const std::string value = i + 1 < argc ? argv[i + 1] : "";
    if (argument == "--smoke") {
      smoke = true;
    } else if (argument == "--device" && (value == "cuda" || value == "emulated")) {
      emulated = argv[++i] == std::string("emulated");
    } else if (argument == "--json" && !value.empty()) {
      json_path = argv[++i];
    } else {
      std::fprintf(stderr,
                   "bench_step: '%s', allowed: --device cuda|emulated, --smoke, --json FILE\n",
                   argv[i]);
      return 2;
    }
  }
  return kvern::Run(emulated, smoke, json_path);
}
