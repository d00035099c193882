#include "schemas/files/model_tensors.h"

#include <charconv>

namespace kvern {
namespace {

struct NamePair {
  std::string_view gguf;
  std::string_view hf;
};

constexpr NamePair kTopNames[] = {
    {"token_embd", "model.embed_tokens"}, {"output_norm", "model.norm"}, {"output", "lm_head"}};
constexpr NamePair kLayerNames[] = {
    {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"}, {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};

// "3.attn_q" -> "model.layers.3.self_attn.q_proj"; empty if it is no layer's name.
std::string HfLayerName(std::string_view rest) {
  uint32_t layer = 0;
  auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  size_t digits = static_cast<size_t>(end - rest.data());
  bool padded = digits > 1 && rest[0] == '0';  // "007" would give two names for one layer
  if (error != std::errc() || padded || digits >= rest.size() || rest[digits] != '.') return "";
  for (const NamePair& pair : kLayerNames) {
    if (pair.gguf == rest.substr(digits + 1)) {
      return absl::StrCat("model.layers.", layer, ".", ToAbsl(pair.hf));
    }
  }
  return "";
}

}  // namespace

std::string HfNameOfGguf(std::string_view name) {
  std::string unknown(name);
  size_t dot = name.rfind('.');
  if (dot == std::string_view::npos) return unknown;
  std::string_view base = name.substr(0, dot);
  std::string_view kind = name.substr(dot);
  if (kind != ".weight" && kind != ".bias") return unknown;
  if (base.starts_with("blk.")) {
    std::string layer = HfLayerName(base.substr(4));
    return layer.empty() ? unknown : absl::StrCat(layer, ToAbsl(kind));
  }
  for (const NamePair& pair : kTopNames) {
    if (pair.gguf == base) return absl::StrCat(ToAbsl(pair.hf), ToAbsl(kind));
  }
  return unknown;
}

absl::Status ForEachModelTensor(
    const ModelConfig& config,
    const std::function<absl::Status(const std::string&, const std::vector<uint64_t>&)>& visit) {
  struct Matrix {
    const char* name;
    uint64_t rows;
    uint64_t columns;
    bool bias;
  };
  uint64_t hidden = config.hidden_size;
  uint64_t q_rows = uint64_t{config.num_heads} * config.head_dim;
  uint64_t kv_rows = uint64_t{config.num_kv_heads} * config.head_dim;
  uint64_t inner = config.intermediate_size;
  const Matrix matrices[] = {
      {"self_attn.q_proj", q_rows, hidden, config.attention_bias},
      {"self_attn.k_proj", kv_rows, hidden, config.attention_bias},
      {"self_attn.v_proj", kv_rows, hidden, config.attention_bias},
      {"self_attn.o_proj", hidden, q_rows, config.attention_bias},
      {"mlp.gate_proj", inner, hidden, config.mlp_bias},
      {"mlp.up_proj", inner, hidden, config.mlp_bias},
      {"mlp.down_proj", hidden, inner, config.mlp_bias},
  };
  KVERN_RETURN_IF_ERROR(visit("model.embed_tokens.weight", {config.vocab_size, hidden}));
  KVERN_RETURN_IF_ERROR(visit("model.norm.weight", {hidden}));
  if (!config.tied_embeddings) {
    KVERN_RETURN_IF_ERROR(visit("lm_head.weight", {config.vocab_size, hidden}));
  }
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    std::string prefix = absl::StrCat("model.layers.", layer, ".");
    KVERN_RETURN_IF_ERROR(visit(prefix + "input_layernorm.weight", {hidden}));
    KVERN_RETURN_IF_ERROR(visit(prefix + "post_attention_layernorm.weight", {hidden}));
    for (const Matrix& matrix : matrices) {
      std::string name = prefix + matrix.name;
      KVERN_RETURN_IF_ERROR(visit(name + ".weight", {matrix.rows, matrix.columns}));
      if (matrix.bias) KVERN_RETURN_IF_ERROR(visit(name + ".bias", {matrix.rows}));
    }
  }
  return absl::OkStatus();
}

}  // namespace kvern
