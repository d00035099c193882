#include "tests/schemas/files/sized_model.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace kvern {
namespace {

// Small values, none of them equal to its neighbours.
std::string Values(uint64_t count) {
  std::string data;
  for (uint64_t i = 0; i < count; ++i) data += Bytes(0.01f * static_cast<float>(i * 7 % 23) - 0.1f);
  return data;
}

}  // namespace

std::string ModelSizes::ToString() const {
  return absl::StrCat(heads, " heads, ", kv_heads, " KV heads of ", head_dim, ", hidden ", hidden,
                      ", intermediate ", intermediate, ", vocabulary ", vocab, ", layers ", layers,
                      ", positions ", max_seq_len);
}

GgufWriter SizedGguf(const ModelSizes& s) {
  GgufWriter gguf = TinyGguf();
  gguf.Uint32("llama.block_count", s.layers);
  gguf.Uint32("llama.context_length", s.max_seq_len);
  gguf.Uint32("llama.embedding_length", s.hidden);
  gguf.Uint32("llama.feed_forward_length", s.intermediate);
  gguf.Uint32("llama.attention.head_count", s.heads);
  gguf.Uint32("llama.attention.head_count_kv", s.kv_heads);
  gguf.Uint32("llama.attention.key_length", s.head_dim);
  std::erase_if(gguf.keys, [](const auto& key) { return key.name.starts_with("tokenizer."); });
  gguf.tensors.clear();
  const auto add = [&gguf](const std::string& name, uint64_t rows, uint64_t cols) {
    std::vector<uint64_t> dims = {cols};
    if (rows > 0) dims.push_back(rows);
    gguf.tensors.push_back(
        {name + ".weight", dims, 0, Values(std::max<uint64_t>(rows, 1) * cols), {}});
  };
  const uint64_t q = uint64_t{s.heads} * s.head_dim;
  const uint64_t kv = uint64_t{s.kv_heads} * s.head_dim;
  add("token_embd", s.vocab, s.hidden);
  add("output_norm", 0, s.hidden);
  for (uint32_t layer = 0; layer < s.layers; ++layer) {
    const std::string prefix = absl::StrCat("blk.", layer, ".");
    add(prefix + "attn_norm", 0, s.hidden);
    add(prefix + "attn_q", q, s.hidden);
    add(prefix + "attn_k", kv, s.hidden);
    add(prefix + "attn_v", kv, s.hidden);
    add(prefix + "attn_output", s.hidden, q);
    add(prefix + "ffn_norm", 0, s.hidden);
    add(prefix + "ffn_gate", s.intermediate, s.hidden);
    add(prefix + "ffn_up", s.intermediate, s.hidden);
    add(prefix + "ffn_down", s.hidden, s.intermediate);
  }
  return gguf;
}

MemoryFolder SizedFolder(const ModelSizes& s) {
  SafetensorsWriter weights;
  const auto add = [&weights](const std::string& name, const std::vector<uint64_t>& shape) {
    weights.Add(name + ".weight", "F32", 4, shape);
  };
  const std::string layer = "model.layers.0.";
  const uint64_t q = uint64_t{s.heads} * s.head_dim;
  const uint64_t kv = uint64_t{s.kv_heads} * s.head_dim;
  add("model.embed_tokens", {s.vocab, s.hidden});
  add("model.norm", {s.hidden});
  add(layer + "input_layernorm", {s.hidden});
  add(layer + "self_attn.q_proj", {q, s.hidden});
  add(layer + "self_attn.k_proj", {kv, s.hidden});
  add(layer + "self_attn.v_proj", {kv, s.hidden});
  add(layer + "self_attn.o_proj", {s.hidden, q});
  add(layer + "post_attention_layernorm", {s.hidden});
  add(layer + "mlp.gate_proj", {s.intermediate, s.hidden});
  add(layer + "mlp.up_proj", {s.intermediate, s.hidden});
  add(layer + "mlp.down_proj", {s.hidden, s.intermediate});
  const std::string config = absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": )", s.vocab,
      R"(, "hidden_size": )", s.hidden, R"(, "intermediate_size": )", s.intermediate,
      R"(, "num_hidden_layers": 1, "num_attention_heads": )", s.heads,
      R"(, "num_key_value_heads": )", s.kv_heads, R"(, "head_dim": )", s.head_dim,
      R"(, "max_position_embeddings": )", s.max_seq_len, R"(, "tie_word_embeddings": true})");
  return {{{"config.json", config}, {"model.safetensors", weights.Build()}}};
}

}  // namespace kvern
