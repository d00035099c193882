#include "tests/schemas/files/model_builder.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace kvern {

void GgufWriter::Put(const std::string& key, uint32_t type, std::string value) {
  for (Key& existing : keys) {
    if (existing.name != key) continue;
    existing.type = type;
    existing.value = std::move(value);
    return;
  }
  keys.push_back({key, type, std::move(value)});
}

void GgufWriter::Texts(const std::string& key, const std::vector<std::string>& values) {
  std::string bytes = Bytes(uint32_t{8}) + Bytes(uint64_t{values.size()});
  for (const std::string& value : values) bytes += String(value);
  Put(key, 9, bytes);
}

void GgufWriter::Int32s(const std::string& key, const std::vector<int32_t>& values) {
  std::string bytes = Bytes(uint32_t{5}) + Bytes(uint64_t{values.size()});
  for (int32_t value : values) bytes += Bytes(value);
  Put(key, 9, bytes);
}

void GgufWriter::Remove(const std::string& key) {
  std::erase_if(keys, [&](const Key& entry) { return entry.name == key; });
}

GgufWriter::Tensor& GgufWriter::Find(const std::string& tensor) {
  return *std::find_if(tensors.begin(), tensors.end(),
                       [&](const Tensor& entry) { return entry.name == tensor; });
}

std::string GgufWriter::Build() const {
  std::string head = magic + Bytes(version) + Bytes(tensor_count.value_or(tensors.size())) +
                     Bytes(key_count.value_or(keys.size()));
  for (const Key& key : keys) head += String(key.name) + Bytes(key.type) + key.value;
  std::string data;
  for (const Tensor& tensor : tensors) {
    head += String(tensor.name) + Bytes(static_cast<uint32_t>(tensor.dims.size()));
    for (uint64_t dim : tensor.dims) head += Bytes(dim);
    data.resize((data.size() + alignment - 1) / alignment * alignment);
    head += Bytes(tensor.type) + Bytes(tensor.offset.value_or(data.size()));
    data += tensor.data;
  }
  head.resize((head.size() + alignment - 1) / alignment * alignment);
  return head + data;
}

GgufWriter TinyGguf() {
  GgufWriter gguf;
  gguf.Text("general.architecture", "llama");
  gguf.Uint32("llama.block_count", 1);
  gguf.Uint32("llama.context_length", 64);
  gguf.Uint32("llama.embedding_length", 4);
  gguf.Uint32("llama.feed_forward_length", 6);
  gguf.Uint32("llama.attention.head_count", 2);
  gguf.Uint32("llama.attention.head_count_kv", 1);
  gguf.Float32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  gguf.Float32("llama.rope.freq_base", 5000);
  gguf.Text("tokenizer.ggml.model", "gpt2");
  gguf.Text("tokenizer.ggml.pre", "gpt-2");
  gguf.Texts("tokenizer.ggml.tokens", {"a", "b", "ab"});
  gguf.Int32s("tokenizer.ggml.token_type", {1, 1, 3});
  gguf.Texts("tokenizer.ggml.merges", {"a b"});
  gguf.Uint32("tokenizer.ggml.eos_token_id", 2);
  auto add = [&gguf](const std::string& name, std::vector<uint64_t> dims) {
    uint64_t elements = 1;
    for (uint64_t dim : dims) elements *= dim;
    std::string data;
    for (uint64_t i = 0; i < elements; ++i) data += Bytes(static_cast<float>(i));
    gguf.tensors.push_back({name + ".weight", std::move(dims), 0, std::move(data), {}});
  };
  add("token_embd", {4, 3});
  add("output_norm", {4});
  add("blk.0.attn_norm", {4});
  add("blk.0.attn_q", {4, 4});
  add("blk.0.attn_k", {4, 2});
  add("blk.0.attn_v", {4, 2});
  add("blk.0.attn_output", {4, 4});
  add("blk.0.ffn_norm", {4});
  add("blk.0.ffn_gate", {4, 6});
  add("blk.0.ffn_up", {4, 6});
  add("blk.0.ffn_down", {6, 4});
  return gguf;
}

std::string SafetensorsFile(const std::string& header, const std::string& buffer) {
  return Bytes(uint64_t{header.size()}) + header + buffer;
}

void SafetensorsWriter::Add(const std::string& name, const std::string& dtype,
                            uint64_t element_bytes, const std::vector<uint64_t>& shape) {
  uint64_t bytes = element_bytes;
  for (uint64_t extent : shape) bytes *= extent;
  absl::StrAppend(&entries, entries.empty() ? "" : ",", "\"", name, "\":{\"dtype\":\"", dtype,
                  "\",\"shape\":[", absl::StrJoin(shape, ","), "],\"data_offsets\":[",
                  buffer.size(), ",", buffer.size() + bytes, "]}");
  buffer.resize(buffer.size() + bytes);
}

ModelFolder MemoryFolder::Folder() const {
  auto open = [files = files](
                  const std::string& file) -> absl::StatusOr<std::shared_ptr<const ByteSource>> {
    auto it = files.find(file);
    if (it == files.end()) return absl::NotFoundError(file + " is not in the folder");
    return std::make_shared<MemorySource>("mem/" + file, it->second);
  };
  return {"mem", open};
}

MemoryFolder TinyFolder() {
  SafetensorsWriter weights;
  auto add = [&weights](const std::string& name, const std::vector<uint64_t>& shape) {
    weights.Add(name + ".weight", "F32", 4, shape);
  };
  add("model.embed_tokens", {3, 4});
  add("model.norm", {4});
  add("model.layers.0.input_layernorm", {4});
  add("model.layers.0.self_attn.q_proj", {4, 4});
  add("model.layers.0.self_attn.k_proj", {2, 4});
  add("model.layers.0.self_attn.v_proj", {2, 4});
  add("model.layers.0.self_attn.o_proj", {4, 4});
  add("model.layers.0.post_attention_layernorm", {4});
  add("model.layers.0.mlp.gate_proj", {6, 4});
  add("model.layers.0.mlp.up_proj", {6, 4});
  add("model.layers.0.mlp.down_proj", {4, 6});
  return {{{"config.json", TinyConfig()}, {"model.safetensors", weights.Build()}}};
}

std::string TinyConfig(const std::string& field, const std::string& value) {
  std::map<std::string, std::string> fields = {
      {"architectures", "[\"LlamaForCausalLM\"]"},
      {"model_type", "\"llama\""},
      {"hidden_act", "\"silu\""},
      {"vocab_size", "3"},
      {"hidden_size", "4"},
      {"intermediate_size", "6"},
      {"num_hidden_layers", "1"},
      {"num_attention_heads", "2"},
      {"num_key_value_heads", "1"},
      {"max_position_embeddings", "64"},
      {"rms_norm_eps", "1e-05"},
      {"rope_theta", "5000.0"},
      {"tie_word_embeddings", "true"},
      {"eos_token_id", "2"},
  };
  if (!field.empty()) fields[field] = value;
  std::vector<std::string> parts;
  for (const auto& [name, text] : fields) {
    if (!text.empty()) parts.push_back(absl::StrCat("\"", name, "\": ", text));
  }
  return absl::StrCat("{", absl::StrJoin(parts, ", "), "}");
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGguf(std::string bytes) {
  return Checkpoint::FromGguf(std::make_shared<MemorySource>("mem.gguf", std::move(bytes)));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGguf(const GgufWriter& writer) {
  return OpenGguf(writer.Build());
}

}  // namespace kvern
