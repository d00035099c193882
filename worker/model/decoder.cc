#include "worker/model/decoder.h"

#include <utility>

#include "cluster/base/check.h"
#include "worker/device/ops.h"

namespace kvern {
namespace {

const float* Floats(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? static_cast<const float*>(buffer->data()) : nullptr;
}

}  // namespace

// Activations are float32. `hidden_` is the residual stream; `delta_` what a block adds to it, and
// the block's normalised input before that.
class Decoder::Impl {
 public:
  Impl(const ModelWeights* weights, Device* device, Communicator* comm, int64_t max_tokens,
       int64_t max_logit_rows)
      : weights_(*weights),
        config_(weights->config),
        device_(*device),
        ops_(device->ops()),
        comm_(*comm),
        max_tokens_(max_tokens),
        max_logit_rows_(max_logit_rows),
        batch_(device->NewBatch()) {}

  absl::Status Allocate();
  absl::StatusOr<Tensor> Forward(const BatchLayout& layout, KvCache& cache);
  size_t workspace_bytes() const { return workspace_->bytes(); }

 private:
  absl::Status Layer(size_t layer, int64_t tokens, KvCache& cache);
  absl::StatusOr<Tensor> Logits(int64_t rows, int64_t tokens);
  absl::Status SumOverRanks(Tensor data) {
    return comm_.world() > 1 ? comm_.AllReduceSum(data) : absl::OkStatus();
  }
  int64_t q_heads() const { return weights_.shard.q_heads.size(); }
  int64_t head_dim() const { return config_.head_dim; }

  const ModelWeights& weights_;
  const ModelConfig& config_;
  Device& device_;
  Ops& ops_;
  Communicator& comm_;
  const int64_t max_tokens_;
  const int64_t max_logit_rows_;
  std::unique_ptr<Batch> batch_;
  std::unique_ptr<Buffer> workspace_;
  Tensor hidden_;        // [T, H]
  Tensor delta_;         // [T, H]
  Tensor qkv_;           // [T, (Q + 2 KV) * D]
  Tensor attention_;     // [T, Q * D]
  Tensor gate_up_;       // [T, 2 F]
  Tensor activation_;    // [T, F]
  Tensor logit_hidden_;  // [R, H]
  Tensor logit_delta_;   // [R, H]
  Tensor logits_;        // [R, V]
};

absl::Status Decoder::Impl::Allocate() {
  const RankShard& shard = weights_.shard;
  int64_t hidden = config_.hidden_size;
  int64_t q_columns = q_heads() * head_dim();
  int64_t kv_columns = int64_t{shard.kv_heads.size()} * head_dim();
  int64_t intermediate = shard.intermediate.size();
  struct Part {
    Tensor* tensor;
    int64_t rows;
    int64_t cols;
  };
  const Part parts[] = {
      {&hidden_, max_tokens_, hidden},
      {&delta_, max_tokens_, hidden},
      {&qkv_, max_tokens_, q_columns + 2 * kv_columns},
      {&attention_, max_tokens_, q_columns},
      {&gate_up_, max_tokens_, 2 * intermediate},
      {&activation_, max_tokens_, intermediate},
      {&logit_hidden_, max_logit_rows_, hidden},
      {&logit_delta_, max_logit_rows_, hidden},
      {&logits_, max_logit_rows_, shard.vocab.size()},
  };
  constexpr size_t kAlignment = 64;  // a cache line
  size_t total = 0;
  std::vector<size_t> offsets;
  for (const Part& part : parts) {
    offsets.push_back(total);
    size_t bytes = static_cast<size_t>(part.rows * part.cols) * sizeof(float);
    total += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  KVERN_ASSIGN_OR_RETURN(workspace_, device_.Allocate(total));
  for (size_t i = 0; i < offsets.size(); ++i) {
    void* data = static_cast<char*>(workspace_->data()) + offsets[i];
    *parts[i].tensor = {data, DType::kF32, parts[i].rows, parts[i].cols, parts[i].cols};
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Decoder::Impl::Forward(const BatchLayout& layout, KvCache& cache) {
  auto tokens = static_cast<int64_t>(layout.token_ids.size());
  auto logit_rows = static_cast<int64_t>(layout.logit_rows.size());
  KVERN_CHECK(tokens >= 1 && tokens <= max_tokens_) << tokens << " of " << max_tokens_;
  KVERN_CHECK_LE(logit_rows, max_logit_rows_);
  KVERN_CHECK_EQ(cache.shape().kv_heads, int64_t{weights_.shard.kv_heads.size()});
  KVERN_RETURN_IF_ERROR(batch_->Load(layout));
  Tensor hidden = hidden_.FirstRows(tokens);
  Tensor delta = delta_.FirstRows(tokens);
  ops_.Embed(*batch_, *weights_.embedding, weights_.shard.vocab.begin, hidden);
  KVERN_RETURN_IF_ERROR(SumOverRanks(hidden));
  ops_.RmsNorm(hidden, Floats(weights_.layers[0].input_norm), config_.rms_norm_eps, delta);
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    KVERN_RETURN_IF_ERROR(Layer(layer, tokens, cache));
  }
  return Logits(logit_rows, tokens);
}

// Takes the layer's normalised input from delta_. Leaves the next layer's there, but for the last
// layer: there it leaves what Logits has yet to add.
absl::Status Decoder::Impl::Layer(size_t layer, int64_t tokens, KvCache& cache) {
  const LayerWeights& w = weights_.layers[layer];
  Tensor hidden = hidden_.FirstRows(tokens);
  Tensor delta = delta_.FirstRows(tokens);
  Tensor qkv = qkv_.FirstRows(tokens);
  Tensor attention = attention_.FirstRows(tokens);
  Tensor gate_up = gate_up_.FirstRows(tokens);
  Tensor activation = activation_.FirstRows(tokens);
  RopeTable rope{Floats(weights_.rope_cos), Floats(weights_.rope_sin)};
  auto index = static_cast<int64_t>(layer);

  ops_.MatMul(delta, *w.qkv, Floats(w.qkv_bias), qkv);
  ops_.RopeAndStoreKv(qkv, q_heads(), rope, *batch_, index, cache);
  ops_.Attention(qkv.Columns(0, q_heads() * head_dim()), q_heads(), *batch_, index, cache,
                 attention);
  ops_.MatMul(attention, *w.out, Floats(w.out_bias), delta);
  KVERN_RETURN_IF_ERROR(SumOverRanks(delta));
  ops_.AddRmsNorm(delta, hidden, Floats(w.post_norm), config_.rms_norm_eps, delta);

  ops_.MatMul(delta, *w.gate_up, Floats(w.gate_up_bias), gate_up);
  ops_.SwiGlu(gate_up, activation);
  ops_.MatMul(activation, *w.down, Floats(w.down_bias), delta);
  KVERN_RETURN_IF_ERROR(SumOverRanks(delta));
  if (layer + 1 < weights_.layers.size()) {
    const float* norm = Floats(weights_.layers[layer + 1].input_norm);
    ops_.AddRmsNorm(delta, hidden, norm, config_.rms_norm_eps, delta);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Decoder::Impl::Logits(int64_t rows, int64_t tokens) {
  Tensor logits = logits_.FirstRows(rows);
  if (rows == 0) return logits;
  Tensor hidden = logit_hidden_.FirstRows(rows);
  Tensor delta = logit_delta_.FirstRows(rows);
  ops_.GatherLogitRows(*batch_, hidden_.FirstRows(tokens), hidden);
  ops_.GatherLogitRows(*batch_, delta_.FirstRows(tokens), delta);
  ops_.AddRmsNorm(delta, hidden, Floats(weights_.final_norm), config_.rms_norm_eps, delta);
  ops_.MatMul(delta, weights_.output_matrix(), nullptr, logits);
  return logits;
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const ModelWeights* weights,
                                                         Device* device, Communicator* comm,
                                                         int64_t max_tokens,
                                                         int64_t max_logit_rows) {
  if (max_tokens < 1 || max_logit_rows < 1) {
    return InvalidArgument("max_tokens ", max_tokens, " and max_logit_rows ", max_logit_rows,
                           " must be positive");
  }
  KVERN_CHECK(comm->world() == weights->world && comm->rank() == weights->rank)
      << "the communicator is rank " << comm->rank() << " of " << comm->world();
  auto impl = std::make_unique<Impl>(weights, device, comm, max_tokens, max_logit_rows);
  KVERN_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<Decoder>(new Decoder(std::move(impl)));
}

Decoder::Decoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Decoder::~Decoder() = default;

absl::StatusOr<Tensor> Decoder::Forward(const BatchLayout& layout, KvCache& cache) {
  return impl_->Forward(layout, cache);
}

size_t Decoder::workspace_bytes() const { return impl_->workspace_bytes(); }

}  // namespace kvern
