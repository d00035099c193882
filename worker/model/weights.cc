#include "worker/model/weights.h"

#include <algorithm>
#include <array>
#include <utility>

#include "cluster/base/check.h"
#include "schemas/files/dequantize.h"
#include "worker/model/matrix_loader.h"
#include "worker/model/rope.h"

namespace kvern {
namespace {

// Rows [first, first + count) of a tensor that become part of a fused matrix or vector.
struct RowsOf {
  std::string name;  // without ".weight" or ".bias"
  uint64_t first;
  uint64_t count;
};

// Asks for all memory first, then reads into it.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, WeightChoice choice, Device& device, ModelWeights& weights)
      : checkpoint_(checkpoint),
        choice_(choice),
        device_(device),
        weights_(weights),
        matrices_(checkpoint) {}

  absl::Status Plan();
  absl::Status Fill();

 private:
  // A vector to be read: of parts, the tensors PART + suffix.
  struct VectorJob {
    Buffer* target = nullptr;
    std::vector<RowsOf> parts;
    std::string suffix;
  };
  absl::Status PlanLayer(uint32_t layer, LayerWeights& out);
  absl::Status PlanRope();
  absl::Status FillVector(const VectorJob& job);
  absl::Status FillRope();
  absl::StatusOr<std::unique_ptr<Matrix>> NewMatrix(const std::vector<RowsOf>& parts,
                                                    ShardRange columns, bool at_least_8_bits);
  absl::StatusOr<std::unique_ptr<Buffer>> NewVector(const std::vector<RowsOf>& parts,
                                                    std::string_view suffix);

  const ModelConfig& config() const { return checkpoint_.config(); }
  ShardRange AllHidden() const { return {0, config().hidden_size}; }

  const Checkpoint& checkpoint_;
  WeightChoice choice_;
  Device& device_;
  ModelWeights& weights_;
  MatrixLoader matrices_;
  std::vector<VectorJob> vectors_;
};

absl::StatusOr<std::unique_ptr<Matrix>> Loader::NewMatrix(const std::vector<RowsOf>& parts,
                                                          ShardRange columns,
                                                          bool at_least_8_bits) {
  std::vector<const TensorInfo*> tensors;
  uint64_t rows = 0;
  for (const RowsOf& part : parts) {
    KVERN_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Find(part.name + ".weight"));
    tensors.push_back(tensor);
    rows += part.count;
  }
  WeightFormat format =
      ChooseFormat(choice_, tensors, columns.begin, columns.size(), at_least_8_bits);
  auto matrix = device_.NewMatrix(format, static_cast<int64_t>(rows), columns.size());
  if (!matrix.ok()) {
    return absl::Status(matrix.status().code(), absl::StrCat("for tensor ", parts[0].name, ": ",
                                                             matrix.status().message()));
  }
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    matrices_.Add({.target = matrix->get(),
                   .target_row = row,
                   .tensor = tensors[i],
                   .first_row = parts[i].first,
                   .rows = parts[i].count,
                   .first_col = columns.begin,
                   .cols = columns.size()});
    row += static_cast<int64_t>(parts[i].count);
  }
  return matrix;
}

absl::StatusOr<std::unique_ptr<Buffer>> Loader::NewVector(const std::vector<RowsOf>& parts,
                                                          std::string_view suffix) {
  size_t count = 0;
  for (const RowsOf& part : parts) count += part.count;
  KVERN_ASSIGN_OR_RETURN(auto buffer, device_.Allocate(count * sizeof(float)));
  vectors_.push_back({buffer.get(), parts, std::string(suffix)});
  return buffer;
}

absl::Status Loader::FillVector(const VectorJob& job) {
  std::vector<float> values;
  for (const RowsOf& part : job.parts) {
    KVERN_ASSIGN_OR_RETURN(const TensorInfo* tensor, checkpoint_.Find(part.name + job.suffix));
    std::vector<std::byte> bytes(tensor->bytes);
    KVERN_RETURN_IF_ERROR(checkpoint_.ReadBytes(*tensor, 0, bytes));
    std::vector<float> whole(tensor->row_elements());
    DequantizeRow(tensor->dtype, bytes, whole);
    for (uint64_t i = 0; i < part.count; ++i) {
      values.push_back(whole[checkpoint_.SourceRow(*tensor, part.first + i)]);
    }
  }
  return device_.CopyToDevice(job.target->data(), values.data(), values.size() * sizeof(float));
}

absl::Status Loader::PlanLayer(uint32_t layer, LayerWeights& out) {
  const RankShard& shard = weights_.shard;
  std::string prefix = absl::StrCat("model.layers.", layer, ".");
  uint64_t dim = config().head_dim;
  uint64_t hidden = config().hidden_size;
  RowsOf q{prefix + "self_attn.q_proj", shard.q_heads.begin * dim, shard.q_heads.size() * dim};
  RowsOf k{prefix + "self_attn.k_proj", shard.kv_heads.begin * dim, shard.kv_heads.size() * dim};
  RowsOf v{prefix + "self_attn.v_proj", k.first, k.count};
  RowsOf gate{prefix + "mlp.gate_proj", shard.intermediate.begin, shard.intermediate.size()};
  RowsOf up{prefix + "mlp.up_proj", gate.first, gate.count};
  RowsOf out_proj{prefix + "self_attn.o_proj", 0, hidden};
  RowsOf down{prefix + "mlp.down_proj", 0, hidden};
  ShardRange out_columns{static_cast<uint32_t>(q.first), static_cast<uint32_t>(q.first + q.count)};

  KVERN_ASSIGN_OR_RETURN(out.input_norm,
                         NewVector({{prefix + "input_layernorm", 0, hidden}}, ".weight"));
  KVERN_ASSIGN_OR_RETURN(out.post_norm,
                         NewVector({{prefix + "post_attention_layernorm", 0, hidden}}, ".weight"));
  KVERN_ASSIGN_OR_RETURN(out.qkv, NewMatrix({q, k, v}, AllHidden(), false));
  KVERN_ASSIGN_OR_RETURN(out.out, NewMatrix({out_proj}, out_columns, false));
  KVERN_ASSIGN_OR_RETURN(out.gate_up, NewMatrix({gate, up}, AllHidden(), false));
  KVERN_ASSIGN_OR_RETURN(out.down, NewMatrix({down}, shard.intermediate, false));
  bool adds_output_bias = weights_.rank == 0;  // the sum over ranks must contain it once
  if (config().attention_bias) {
    KVERN_ASSIGN_OR_RETURN(out.qkv_bias, NewVector({q, k, v}, ".bias"));
    if (adds_output_bias) {
      KVERN_ASSIGN_OR_RETURN(out.out_bias, NewVector({out_proj}, ".bias"));
    }
  }
  if (config().mlp_bias) {
    KVERN_ASSIGN_OR_RETURN(out.gate_up_bias, NewVector({gate, up}, ".bias"));
    if (adds_output_bias) {
      KVERN_ASSIGN_OR_RETURN(out.down_bias, NewVector({down}, ".bias"));
    }
  }
  return absl::OkStatus();
}

absl::Status Loader::PlanRope() {
  const size_t bytes = size_t{weights_.max_seq_len} * (config().head_dim / 2) * sizeof(float);
  for (std::unique_ptr<Buffer>* table : {&weights_.rope_cos, &weights_.rope_sin}) {
    absl::StatusOr<std::unique_ptr<Buffer>> made = device_.Allocate(bytes);
    if (!made.ok()) {
      return absl::Status(made.status().code(),
                          absl::StrCat("rope table of ", weights_.max_seq_len,
                                       " positions (max_seq_len or KV memory bounds it): ",
                                       made.status().message()));
    }
    *table = *std::move(made);
  }
  return absl::OkStatus();
}

absl::Status Loader::FillRope() {
  constexpr uint32_t kRun = RopeRuns::kRun;
  constexpr uint32_t kRows = 32 * kRun;  // positions at a time: the host keeps no whole table
  const RopeRuns runs(RopeFrequencies(config().rope, config().head_dim));
  const size_t half = config().head_dim / 2;
  std::vector<float> cos(std::min(kRows, weights_.max_seq_len) * half);
  std::vector<float> sin(cos.size());
  auto* cos_table = static_cast<float*>(weights_.rope_cos->data());
  auto* sin_table = static_cast<float*>(weights_.rope_sin->data());
  for (uint32_t first = 0; first < weights_.max_seq_len; first += kRows) {
    const uint32_t rows = std::min(kRows, weights_.max_seq_len - first);
    device_.ParallelFor((rows + kRun - 1) / kRun, [&](int64_t job) {
      const uint32_t row = static_cast<uint32_t>(job) * kRun;
      runs.Fill(first + row, std::min(kRun, rows - row), cos.data() + row * half,
                sin.data() + row * half);
    });
    const size_t bytes = rows * half * sizeof(float);
    KVERN_RETURN_IF_ERROR(device_.CopyToDevice(cos_table + first * half, cos.data(), bytes));
    KVERN_RETURN_IF_ERROR(device_.CopyToDevice(sin_table + first * half, sin.data(), bytes));
  }
  return absl::OkStatus();
}

absl::Status Loader::Plan() {
  const ShardRange& vocab = weights_.shard.vocab;
  RowsOf embedding{"model.embed_tokens", vocab.begin, vocab.size()};
  KVERN_ASSIGN_OR_RETURN(weights_.embedding, NewMatrix({embedding}, AllHidden(), true));
  if (!config().tied_embeddings) {
    RowsOf output{"lm_head", vocab.begin, vocab.size()};
    KVERN_ASSIGN_OR_RETURN(weights_.output, NewMatrix({output}, AllHidden(), true));
  }
  KVERN_ASSIGN_OR_RETURN(weights_.final_norm,
                         NewVector({{"model.norm", 0, config().hidden_size}}, ".weight"));
  weights_.layers.resize(config().num_layers);
  for (uint32_t layer = 0; layer < config().num_layers; ++layer) {
    KVERN_RETURN_IF_ERROR(PlanLayer(layer, weights_.layers[layer]));
  }
  return PlanRope();
}

absl::Status Loader::Fill() {
  for (const VectorJob& job : vectors_) KVERN_RETURN_IF_ERROR(FillVector(job));
  KVERN_RETURN_IF_ERROR(FillRope());
  KVERN_RETURN_IF_ERROR(matrices_.Run(device_));
  return device_.Synchronize();
}

// Feed-forward columns are cut at whole quantisation groups where the model has enough of them, so
// that quantised weights stay so; a model that has not is cut anywhere and its cut is kept as
// float32.
uint32_t CutUnit(const ModelConfig& config, int world) {
  constexpr auto kGroup = static_cast<uint32_t>(kQuantGroup);
  bool enough = config.intermediate_size / kGroup >= static_cast<uint32_t>(world);
  return config.intermediate_size % kGroup == 0 && enough ? kGroup : 1;
}

// What the device keeps of each part: bytes, times kQuantGroup.
class ByteCosts {
 public:
  ByteCosts(const Checkpoint& checkpoint, WeightChoice choice, const Device& device)
      : checkpoint_(checkpoint), choice_(choice), device_(device) {}

  absl::StatusOr<ShardCosts> Of(uint32_t world, uint32_t unit) {
    const ModelConfig& config = checkpoint_.config();
    KVERN_ASSIGN_OR_RETURN(const auto kv_heads, SplitKvHeads(config.num_kv_heads, world));
    ShardCosts costs;
    costs.attention.resize(world);
    for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
      KVERN_RETURN_IF_ERROR(
          AddLayer(absl::StrCat("model.layers.", layer, "."), kv_heads, unit, costs));
    }
    const uint64_t hidden = config.hidden_size;
    costs.row = hidden * GroupBytes({"model.embed_tokens"}, 0, hidden, true);
    if (!config.tied_embeddings) costs.row += hidden * GroupBytes({"lm_head"}, 0, hidden, true);
    KVERN_RETURN_IF_ERROR(status_);
    return costs;
  }

 private:
  absl::Status AddLayer(const std::string& prefix, const std::vector<ShardRange>& kv_heads,
                        uint32_t unit, ShardCosts& costs) {
    const ModelConfig& config = checkpoint_.config();
    const uint64_t hidden = config.hidden_size;
    const uint64_t dim = config.head_dim;
    const uint64_t group = config.num_heads / config.num_kv_heads;
    const std::string attention = prefix + "self_attn.";
    const uint64_t qkv = GroupBytes(
        {attention + "q_proj", attention + "k_proj", attention + "v_proj"}, 0, hidden, false);
    for (size_t rank = 0; rank < kv_heads.size(); ++rank) {
      const uint64_t q_first = kv_heads[rank].begin * group * dim;
      const uint64_t q_rows = kv_heads[rank].size() * group * dim;
      const uint64_t kv_rows = 2 * kv_heads[rank].size() * dim;
      const uint64_t out = GroupBytes({attention + "o_proj"}, q_first, q_rows, false);
      costs.attention[rank] += hidden * ((q_rows + kv_rows) * qkv + q_rows * out);
    }
    const uint64_t gate_up =
        GroupBytes({prefix + "mlp.gate_proj", prefix + "mlp.up_proj"}, 0, hidden, false);
    costs.column += hidden * (2 * gate_up + GroupBytes({prefix + "mlp.down_proj"}, 0, unit, false));
    return status_;
  }

  // Of kQuantGroup columns of a row of a matrix made of these columns of the tensors; 0: see
  // status_.
  uint64_t GroupBytes(const std::vector<std::string>& names, uint64_t first_col, uint64_t cols,
                      bool at_least_8_bits) {
    std::vector<const TensorInfo*> tensors;
    for (const std::string& name : names) {
      absl::StatusOr<const TensorInfo*> tensor = checkpoint_.Find(name + ".weight");
      if (!tensor.ok()) {
        status_ = tensor.status();
        return 0;
      }
      tensors.push_back(*tensor);
    }
    return device_.GroupBytes(ChooseFormat(choice_, tensors, first_col, cols, at_least_8_bits));
  }

  const Checkpoint& checkpoint_;
  const WeightChoice choice_;
  const Device& device_;
  absl::Status status_;  // the last error
};

}  // namespace

absl::StatusOr<PlannedWeights> PlanWeights(const Checkpoint& checkpoint, WeightChoice choice,
                                           int rank, int world, uint32_t max_seq_len,
                                           Device& device) {
  KVERN_CHECK(world >= 1 && rank >= 0 && rank < world) << rank << " of " << world;
  const ModelConfig& config = checkpoint.config();
  if (max_seq_len == 0 || max_seq_len > config.max_seq_len) {
    return InvalidArgument("max_seq_len ", max_seq_len, ", allowed: 1 to ", config.max_seq_len,
                           " (the model's)");
  }
  const auto ranks = static_cast<uint32_t>(world);
  const uint32_t unit = CutUnit(config, world);
  KVERN_ASSIGN_OR_RETURN(const ShardCosts costs,
                         ByteCosts(checkpoint, choice, device).Of(ranks, unit));
  KVERN_ASSIGN_OR_RETURN(auto shards, ShardModel(config, ranks, unit, costs));
  auto weights = std::make_unique<ModelWeights>();
  weights->config = config;
  weights->shard = shards[static_cast<size_t>(rank)];
  weights->rank = rank;
  weights->world = world;
  weights->max_seq_len = max_seq_len;
  auto loader = std::make_shared<Loader>(checkpoint, choice, device, *weights);
  KVERN_RETURN_IF_ERROR(loader->Plan());
  return PlannedWeights{std::move(weights), [loader] { return loader->Fill(); }};
}

absl::StatusOr<std::unique_ptr<ModelWeights>> LoadWeights(const Checkpoint& checkpoint,
                                                          WeightChoice choice, int rank, int world,
                                                          uint32_t max_seq_len, Device& device) {
  device.BeginLayout();
  absl::StatusOr<PlannedWeights> planned =
      PlanWeights(checkpoint, choice, rank, world, max_seq_len, device);
  KVERN_RETURN_IF_ERROR(device.Commit());
  KVERN_RETURN_IF_ERROR(planned.status());
  KVERN_RETURN_IF_ERROR(planned->fill());
  return std::move(planned->weights);
}

size_t ModelWeights::rope_bytes() const { return rope_cos->bytes() + rope_sin->bytes(); }

size_t ModelWeights::bytes() const {
  size_t total = 0;
  auto add = [&total](const auto& object) {
    if (object) total += object->bytes();
  };
  add(embedding);
  add(output);
  add(final_norm);
  add(rope_cos);
  add(rope_sin);
  for (const LayerWeights& layer : layers) {
    add(layer.input_norm);
    add(layer.qkv);
    add(layer.qkv_bias);
    add(layer.out);
    add(layer.out_bias);
    add(layer.post_norm);
    add(layer.gate_up);
    add(layer.gate_up_bias);
    add(layer.down);
    add(layer.down_bias);
  }
  return total;
}

}  // namespace kvern
