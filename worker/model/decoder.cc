#include "worker/model/decoder.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "cluster/base/check.h"
#include "worker/device/ops.h"

namespace kvern {
namespace {

const float* Floats(const std::unique_ptr<Buffer>& buffer) {
  return buffer ? static_cast<const float*>(buffer->data()) : nullptr;
}

}  // namespace

// Rows that steps of decodes alone are padded to, so that few graphs serve all of them: 1, 2, 4 and
// multiples of 8.
int64_t GraphRows(int64_t rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : (rows + 7) / 8 * 8; }
// Beyond, a step is long enough to be enqueued while it runs.
constexpr int64_t kMaxGraphRows = 256;

// `hidden_` is the residual stream, `delta_` what a block adds to it: both float32, as are the
// logits. The rest has the device's type of activations. `normed_`, a block's normalised input,
// lies in delta_'s place where the types agree.
class Decoder::Impl {
 public:
  Impl(const ModelWeights* weights, Device* device, Communicator* comm, const DecoderLimits& limits)
      : weights_(*weights),
        config_(weights->config),
        device_(*device),
        ops_(device->ops()),
        comm_(*comm),
        limits_(limits) {}

  absl::Status Allocate();
  absl::Status Prepare(const BatchLayout& layout);
  absl::Status SetTokenIds(const BatchLayout& layout) { return batch_->SetTokenIds(layout); }
  absl::StatusOr<Tensor> Run(KvCache& cache);
  size_t workspace_bytes() const;
  void ForgetRecordedSteps() { steps_.clear(); }

 private:
  // A step of one size: computed once, then recorded for each slot of the batch, then replayed.
  struct RecordedStep {
    const KvCache* cache = nullptr;
    std::array<std::unique_ptr<Graph>, Batch::kMaxSlots> graphs;
  };
  int64_t RowsOfGraph(const BatchLayout& layout) const;
  absl::Status RunPadded(int64_t rows, KvCache& cache);
  absl::StatusOr<Tensor> Compute(int64_t tokens, int64_t logit_rows, KvCache& cache);
  absl::Status AllocateBatch();
  void PlaceTensors();
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
  const DecoderLimits limits_;
  std::unique_ptr<Batch> batch_;
  std::vector<std::pair<Tensor*, std::unique_ptr<Buffer>>> workspace_;
  bool placed_ = false;
  Tensor hidden_;                          // [T, H]
  Tensor delta_;                           // [T, H]
  Tensor normed_;                          // [T, H]
  Tensor qkv_;                             // [T, (Q + 2 KV) * D]
  Tensor query_;                           // [T, Q * D], rotated
  Tensor attention_;                       // [T, Q * D]
  Tensor gate_up_;                         // [T, 2 F]
  Tensor activation_;                      // [T, F]
  Tensor logit_hidden_;                    // [R, H]
  Tensor logit_delta_;                     // [R, H]
  Tensor logit_normed_;                    // [R, H]
  Tensor logits_;                          // [R, V]
  std::map<int64_t, RecordedStep> steps_;  // by rows
  struct {
    int64_t tokens = 0;
    int64_t logit_rows = 0;
    int64_t padded = 0;  // rows; 0: it is not one to record
  } prepared_;
};

absl::Status Decoder::Impl::Allocate() {
  const RankShard& shard = weights_.shard;
  int64_t hidden = config_.hidden_size;
  int64_t q_columns = q_heads() * head_dim();
  int64_t kv_columns = int64_t{shard.kv_heads.size()} * head_dim();
  int64_t intermediate = shard.intermediate.size();
  int64_t tokens = limits_.max_tokens;
  int64_t logit_rows = limits_.max_logit_rows;
  DType type = device_.activation_dtype();
  bool shared = type == DType::kF32;  // normed_ in delta_'s place, query_ in qkv_'s
  struct Part {
    Tensor* tensor;
    int64_t rows;
    int64_t cols;
    DType dtype;
  };
  const Part parts[] = {
      {&hidden_, tokens, hidden, DType::kF32},
      {&delta_, tokens, hidden, DType::kF32},
      {&normed_, shared ? 0 : tokens, hidden, type},
      {&qkv_, tokens, q_columns + 2 * kv_columns, DType::kF32},
      {&query_, shared ? 0 : tokens, q_columns, type},
      {&attention_, tokens, q_columns, type},
      {&gate_up_, tokens, 2 * intermediate, type},
      {&activation_, tokens, intermediate, type},
      {&logit_hidden_, logit_rows, hidden, DType::kF32},
      {&logit_delta_, logit_rows, hidden, DType::kF32},
      {&logit_normed_, shared ? 0 : logit_rows, hidden, type},
      {&logits_, logit_rows, shard.vocab.size(), DType::kF32},
  };
  for (const Part& part : parts) {
    *part.tensor = {nullptr, part.dtype, part.rows, part.cols, part.cols};
    size_t bytes = static_cast<size_t>(part.rows * part.cols) * SizeOf(part.dtype);
    if (bytes == 0) continue;
    KVERN_ASSIGN_OR_RETURN(auto buffer, device_.Allocate(bytes));
    workspace_.emplace_back(part.tensor, std::move(buffer));
  }
  return AllocateBatch();
}

// With the first step: until then the workspace may only be laid out.
void Decoder::Impl::PlaceTensors() {
  if (std::exchange(placed_, true)) return;
  for (auto& [tensor, buffer] : workspace_) tensor->data = buffer->data();
  if (device_.activation_dtype() == DType::kF32) {
    normed_ = delta_;
    logit_normed_ = logit_delta_;
    query_ = qkv_.Columns(0, query_.cols);
  }
}

size_t Decoder::Impl::workspace_bytes() const {
  size_t bytes = batch_->bytes();
  for (const auto& [tensor, buffer] : workspace_) bytes += buffer->bytes();
  return bytes;
}

absl::Status Decoder::Impl::AllocateBatch() {
  BatchLimits limits;
  limits.tokens = limits_.max_tokens;
  limits.logit_rows = limits_.max_logit_rows;
  limits.block_entries =
      limits_.max_tokens * ((weights_.max_seq_len + kBlockSize - 1) / kBlockSize);
  limits.q_heads = q_heads();
  limits.kv_heads = weights_.shard.kv_heads.size();
  limits.head_dim = head_dim();
  KVERN_ASSIGN_OR_RETURN(batch_, device_.NewBatch(limits));
  return absl::OkStatus();
}

// 0: this step is not one to record.
int64_t Decoder::Impl::RowsOfGraph(const BatchLayout& layout) const {
  if (!limits_.graphs || device_.graph_recorder() == nullptr) return 0;
  int64_t rows = GraphRows(static_cast<int64_t>(layout.token_ids.size()));
  if (rows > std::min({limits_.max_tokens, limits_.max_logit_rows, kMaxGraphRows})) return 0;
  return layout.sequences.size() == layout.token_ids.size() ? rows : 0;
}

// A first step of a size is computed as it is: it prepares what must not be prepared while steps
// are recorded, in the libraries as well.
absl::Status Decoder::Impl::RunPadded(int64_t rows, KvCache& cache) {
  auto [it, first] = steps_.try_emplace(rows);
  RecordedStep& step = it->second;
  if (first || step.cache != &cache) {
    step = {&cache, {}};
    return Compute(rows, rows, cache).status();
  }
  std::unique_ptr<Graph>& graph = step.graphs[static_cast<size_t>(batch_->slot())];
  if (graph == nullptr) {
    KVERN_ASSIGN_OR_RETURN(graph, device_.graph_recorder()->Record(
                                      [&] { return Compute(rows, rows, cache).status(); }));
  }
  return graph->Launch();
}

absl::Status Decoder::Impl::Prepare(const BatchLayout& layout) {
  auto tokens = static_cast<int64_t>(layout.token_ids.size());
  auto logit_rows = static_cast<int64_t>(layout.logit_rows.size());
  KVERN_CHECK(tokens >= 1 && tokens <= limits_.max_tokens) << tokens;
  KVERN_CHECK_LE(logit_rows, limits_.max_logit_rows);
  for (const BatchSequence& sequence : layout.sequences) {
    KVERN_CHECK_LE(sequence.start + sequence.count, int64_t{weights_.max_seq_len});
  }
  prepared_ = {tokens, logit_rows, RowsOfGraph(layout)};
  return batch_->Load(layout, prepared_.padded);
}

absl::StatusOr<Tensor> Decoder::Impl::Run(KvCache& cache) {
  KVERN_CHECK_EQ(cache.shape().kv_heads, int64_t{weights_.shard.kv_heads.size()});
  PlaceTensors();
  if (prepared_.padded == 0) return Compute(prepared_.tokens, prepared_.logit_rows, cache);
  KVERN_RETURN_IF_ERROR(RunPadded(prepared_.padded, cache));
  return logits_.FirstRows(prepared_.logit_rows);
}

absl::StatusOr<Tensor> Decoder::Impl::Compute(int64_t tokens, int64_t logit_rows, KvCache& cache) {
  Tensor hidden = hidden_.FirstRows(tokens);
  Tensor normed = normed_.FirstRows(tokens);
  ops_.Embed(*batch_, *weights_.embedding, weights_.shard.vocab.begin, hidden);
  KVERN_RETURN_IF_ERROR(SumOverRanks(hidden));
  ops_.RmsNorm(hidden, Floats(weights_.layers[0].input_norm), config_.rms_norm_eps, normed);
  for (size_t layer = 0; layer < weights_.layers.size(); ++layer) {
    KVERN_RETURN_IF_ERROR(Layer(layer, tokens, cache));
  }
  return Logits(logit_rows, tokens);
}

// Takes the layer's normalised input from normed_. Leaves the next layer's there, but for the last
// layer: it leaves in delta_ what Logits has yet to add.
absl::Status Decoder::Impl::Layer(size_t layer, int64_t tokens, KvCache& cache) {
  const LayerWeights& w = weights_.layers[layer];
  Tensor hidden = hidden_.FirstRows(tokens);
  Tensor delta = delta_.FirstRows(tokens);
  Tensor normed = normed_.FirstRows(tokens);
  Tensor qkv = qkv_.FirstRows(tokens);
  Tensor query = query_.FirstRows(tokens);
  Tensor attention = attention_.FirstRows(tokens);
  Tensor gate_up = gate_up_.FirstRows(tokens);
  Tensor activation = activation_.FirstRows(tokens);
  RopeTable rope{Floats(weights_.rope_cos), Floats(weights_.rope_sin)};
  auto index = static_cast<int64_t>(layer);

  ops_.MatMul(normed, *w.qkv, Floats(w.qkv_bias), qkv);
  ops_.RopeAndStoreKv(qkv, rope, *batch_, index, cache, query);
  ops_.Attention(query, *batch_, index, cache, attention);
  ops_.MatMul(attention, *w.out, Floats(w.out_bias), delta);
  KVERN_RETURN_IF_ERROR(SumOverRanks(delta));
  ops_.AddRmsNorm(delta, hidden, Floats(w.post_norm), config_.rms_norm_eps, normed);

  ops_.MatMul(normed, *w.gate_up, Floats(w.gate_up_bias), gate_up);
  ops_.SwiGlu(gate_up, activation);
  ops_.MatMul(activation, *w.down, Floats(w.down_bias), delta);
  KVERN_RETURN_IF_ERROR(SumOverRanks(delta));
  if (layer + 1 < weights_.layers.size()) {
    const float* norm = Floats(weights_.layers[layer + 1].input_norm);
    ops_.AddRmsNorm(delta, hidden, norm, config_.rms_norm_eps, normed);
  }
  return absl::OkStatus();
}

absl::StatusOr<Tensor> Decoder::Impl::Logits(int64_t rows, int64_t tokens) {
  Tensor logits = logits_.FirstRows(rows);
  if (rows == 0) return logits;
  Tensor hidden = logit_hidden_.FirstRows(rows);
  Tensor delta = logit_delta_.FirstRows(rows);
  Tensor normed = logit_normed_.FirstRows(rows);
  ops_.GatherLogitRows(*batch_, hidden_.FirstRows(tokens), hidden);
  ops_.GatherLogitRows(*batch_, delta_.FirstRows(tokens), delta);
  ops_.AddRmsNorm(delta, hidden, Floats(weights_.final_norm), config_.rms_norm_eps, normed);
  ops_.MatMul(normed, weights_.output_matrix(), nullptr, logits);
  return logits;
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(const ModelWeights* weights,
                                                         Device* device, Communicator* comm,
                                                         const DecoderLimits& limits) {
  if (limits.max_tokens < 1 || limits.max_logit_rows < 1) {
    return InvalidArgument("max_tokens ", limits.max_tokens, " and max_logit_rows ",
                           limits.max_logit_rows, " must be positive");
  }
  KVERN_CHECK(comm->world() == weights->world && comm->rank() == weights->rank)
      << "the communicator is rank " << comm->rank() << " of " << comm->world();
  auto impl = std::make_unique<Impl>(weights, device, comm, limits);
  KVERN_RETURN_IF_ERROR(impl->Allocate());
  return std::unique_ptr<Decoder>(new Decoder(std::move(impl)));
}

Decoder::Decoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Decoder::~Decoder() = default;

absl::Status Decoder::Prepare(const BatchLayout& layout) { return impl_->Prepare(layout); }

absl::Status Decoder::SetTokenIds(const BatchLayout& layout) { return impl_->SetTokenIds(layout); }

absl::StatusOr<Tensor> Decoder::Run(KvCache& cache) { return impl_->Run(cache); }

absl::StatusOr<Tensor> Decoder::Forward(const BatchLayout& layout, KvCache& cache) {
  KVERN_RETURN_IF_ERROR(impl_->Prepare(layout));
  return impl_->Run(cache);
}

void Decoder::ForgetRecordedSteps() { impl_->ForgetRecordedSteps(); }

size_t Decoder::workspace_bytes() const { return impl_->workspace_bytes(); }

}  // namespace kvern
