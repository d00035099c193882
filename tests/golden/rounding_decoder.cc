#include "tests/golden/rounding_decoder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "schemas/files/dequantize.h"
#include "worker/model/rope.h"

namespace kvern {
namespace {

double Bf16(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
  const uint32_t rounded = (bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000;
  return static_cast<double>(std::bit_cast<float>(rounded));
}

}  // namespace

double RoundingDecoder::Round(double value) {
  constexpr double kNear = 1.0 / 256;  // of the step from one bf16 value to the next
  const double rounded = Bf16(value);
  const double step = std::ldexp(1, std::ilogb(value) - 7);
  if (value == 0 || std::fabs(std::fabs(value - rounded) / step - 0.5) > kNear) return rounded;
  if (values_at_edges_++ != tipped_) return rounded;
  return Bf16(value + std::copysign(2 * kNear * step, value - rounded));
}

RoundingDecoder::Vector RoundingDecoder::Read(const std::string& name, bool rounded) const {
  auto tensor = checkpoint_.Find(name);
  KVERN_CHECK(tensor.ok()) << tensor.status().ToString();
  const TensorInfo& info = **tensor;
  std::vector<std::byte> bytes(info.bytes);
  KVERN_CHECK(checkpoint_.ReadBytes(info, 0, bytes).ok());
  const size_t columns = info.row_elements();
  std::vector<float> row(columns);
  Vector values;
  for (size_t r = 0; r < bytes.size() / info.row_bytes(); ++r) {
    const size_t source = info.shape.size() > 1 ? checkpoint_.SourceRow(info, r) : r;
    DequantizeRow(info.dtype, std::span(bytes).subspan(source * info.row_bytes(), info.row_bytes()),
                  row);
    for (const float value : row) {
      values.push_back(rounded ? Bf16(value) : static_cast<double>(value));
    }
  }
  return values;
}

RoundingDecoder::Rows RoundingDecoder::Project(const Rows& x, const std::string& name, bool biased,
                                               bool rounded) {
  const Vector weight = Read(name + ".weight", true);
  const size_t inputs = x[0].size();
  const size_t outputs = weight.size() / inputs;
  const Vector bias = biased ? Read(name + ".bias", rounded) : Vector(outputs, 0.0);
  Rows out;
  for (const Vector& row : x) {
    Vector result(outputs);
    for (size_t n = 0; n < outputs; ++n) {
      double sum = bias[n];
      for (size_t k = 0; k < inputs; ++k) sum += row[k] * weight[n * inputs + k];
      result[n] = rounded ? Round(sum) : sum;
    }
    out.push_back(std::move(result));
  }
  return out;
}

RoundingDecoder::Rows RoundingDecoder::Norm(const Rows& x, const std::string& name) {
  const Vector weight = Read(name + ".weight", false);
  const auto epsilon = static_cast<double>(checkpoint_.config().rms_norm_eps);
  Rows out = x;
  for (Vector& row : out) {
    double squares = 0;
    for (const double value : row) squares += value * value;
    const double scale = 1 / std::sqrt(squares / static_cast<double>(row.size()) + epsilon);
    for (size_t i = 0; i < row.size(); ++i) row[i] = Round(row[i] * scale * weight[i]);
  }
  return out;
}

void RoundingDecoder::Rotate(Vector& row, size_t position, uint32_t heads, uint32_t first) {
  const ModelConfig& config = checkpoint_.config();
  const size_t half = config.head_dim / 2;
  std::vector<float> cos(half);
  std::vector<float> sin(half);
  FillRopeRow(RopeFrequencies(config.rope, config.head_dim), static_cast<uint32_t>(position),
              cos.data(), sin.data());
  for (size_t head = first; head < first + heads; ++head) {
    for (size_t i = 0; i < half; ++i) {
      double& low = row[head * 2 * half + i];
      double& high = row[head * 2 * half + half + i];
      const auto c = static_cast<double>(cos[i]);
      const auto s = static_cast<double>(sin[i]);
      const double rotated = low * c - high * s;
      high = Round(high * c + low * s);
      low = Round(rotated);
    }
  }
}

RoundingDecoder::Rows RoundingDecoder::Attend(Rows& q, Rows& k, const Rows& v) {
  const ModelConfig& config = checkpoint_.config();
  const size_t dim = config.head_dim;
  const size_t group = config.num_heads / config.num_kv_heads;
  Rows out;
  for (size_t t = 0; t < q.size(); ++t) {
    Rotate(q[t], t, config.num_heads, 0);
    Rotate(k[t], t, config.num_kv_heads, 0);
    Vector row(q[t].size());
    for (size_t head = 0; head < config.num_heads; ++head) {
      const size_t keys = head / group * dim;
      Vector scores(t + 1);
      for (size_t s = 0; s <= t; ++s) {
        for (size_t i = 0; i < dim; ++i) scores[s] += q[t][head * dim + i] * k[s][keys + i];
        scores[s] /= std::sqrt(static_cast<double>(dim));
      }
      const double max = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (size_t s = 0; s <= t; ++s) {
        const double weight = std::exp(scores[s] - max);
        sum += weight;  // of what is not rounded yet
        for (size_t i = 0; i < dim; ++i) row[head * dim + i] += Round(weight) * v[s][keys + i];
      }
      for (size_t i = 0; i < dim; ++i) row[head * dim + i] = Round(row[head * dim + i] / sum);
    }
    out.push_back(std::move(row));
  }
  return out;
}

void RoundingDecoder::Add(Rows& hidden, const Rows& delta) {
  for (size_t t = 0; t < hidden.size(); ++t) {
    for (size_t i = 0; i < hidden[t].size(); ++i) hidden[t][i] += delta[t][i];
  }
}

void RoundingDecoder::Layer(uint32_t layer, Rows& hidden) {
  const ModelConfig& config = checkpoint_.config();
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const bool biased = config.attention_bias;
  const Rows input = Norm(hidden, prefix + "input_layernorm");
  Rows q = Project(input, prefix + "self_attn.q_proj", biased, false);
  Rows k = Project(input, prefix + "self_attn.k_proj", biased, false);
  Rows v = Project(input, prefix + "self_attn.v_proj", biased, false);
  for (Vector& row : v) {
    for (double& x : row) x = Round(x);
  }
  const Rows attention = Attend(q, k, v);
  Add(hidden, Project(attention, prefix + "self_attn.o_proj", biased, false));

  const Rows normed = Norm(hidden, prefix + "post_attention_layernorm");
  Rows gate = Project(normed, prefix + "mlp.gate_proj", config.mlp_bias, true);
  const Rows up = Project(normed, prefix + "mlp.up_proj", config.mlp_bias, true);
  for (size_t t = 0; t < gate.size(); ++t) {
    for (size_t i = 0; i < gate[t].size(); ++i) {
      gate[t][i] = Round(gate[t][i] / (1 + std::exp(-gate[t][i])) * up[t][i]);
    }
  }
  Add(hidden, Project(gate, prefix + "mlp.down_proj", config.mlp_bias, false));
}

std::vector<float> RoundingDecoder::LastLogits(const std::vector<uint32_t>& ids, int tipped) {
  tipped_ = tipped;
  values_at_edges_ = 0;
  const ModelConfig& config = checkpoint_.config();
  const Vector table = Read("model.embed_tokens.weight", true);
  Rows hidden;
  for (const uint32_t id : ids) {
    const auto begin = table.begin() + static_cast<int64_t>(size_t{id} * config.hidden_size);
    hidden.emplace_back(begin, begin + config.hidden_size);
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) Layer(layer, hidden);
  const Rows last = Norm({hidden.back()}, "model.norm");
  const Rows logits =
      Project(last, config.tied_embeddings ? "model.embed_tokens" : "lm_head", false, false);
  return {logits[0].begin(), logits[0].end()};
}

}  // namespace kvern
