#include "schemas/files/checkpoint.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_join.h"
#include "cluster/base/check.h"
#include "cluster/base/rng.h"
#include "schemas/files/file.h"
#include "schemas/files/gguf.h"
#include "schemas/files/gguf_model.h"
#include "schemas/files/model_tensors.h"

namespace kvern {
namespace {

// A running hash of numbers and strings, each of them delimited.
class Hasher {
 public:
  void Add(uint64_t value) { state_ = Mix64(state_ ^ value) + value; }
  void Add(double value) { Add(std::bit_cast<uint64_t>(value)); }
  void Add(const std::string& text) {
    Add(uint64_t{text.size()});
    for (size_t i = 0; i < text.size(); i += sizeof(uint64_t)) {
      uint64_t word = 0;
      text.copy(reinterpret_cast<char*>(&word), sizeof(word), i);
      Add(word);
    }
  }
  uint64_t state() const { return state_; }

 private:
  uint64_t state_ = 0;
};

void HashConfig(const ModelConfig& config, Hasher& hasher) {
  hasher.Add(config.architecture);
  for (uint64_t field :
       {config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads,
        config.head_dim, config.intermediate_size, config.vocab_size, config.max_seq_len,
        config.tied_embeddings ? 1u : 0u, config.attention_bias ? 1u : 0u,
        config.mlp_bias ? 1u : 0u, config.bos_id.has_value() ? *config.bos_id + 1 : 0u}) {
    hasher.Add(field);
  }
  hasher.Add(static_cast<double>(config.rms_norm_eps));
  hasher.Add(config.rope.theta);
  hasher.Add(uint64_t{config.rope.llama3.has_value()});
  if (config.rope.llama3) {
    hasher.Add(config.rope.llama3->factor);
    hasher.Add(config.rope.llama3->low_freq_factor);
    hasher.Add(config.rope.llama3->high_freq_factor);
    hasher.Add(uint64_t{config.rope.llama3->original_max_seq_len});
  }
  hasher.Add(uint64_t{config.eos_ids.size()});
  for (uint64_t id : config.eos_ids) hasher.Add(id);
}

void HashTensor(const TensorInfo& tensor, Hasher& hasher) {
  hasher.Add(tensor.name);
  hasher.Add(static_cast<uint64_t>(tensor.dtype));
  hasher.Add(tensor.unread_type);
  hasher.Add(uint64_t{tensor.shape.size()});
  for (uint64_t extent : tensor.shape) hasher.Add(extent);
  hasher.Add(tensor.bytes);
  hasher.Add(uint64_t{tensor.source});
  hasher.Add(tensor.offset);
}

bool StoredInterleaved(const std::string& hf_name) {
  std::string_view name = hf_name;
  return name.find(".self_attn.q_proj.") != std::string_view::npos ||
         name.find(".self_attn.k_proj.") != std::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::FromGguf(
    std::shared_ptr<const ByteSource> source) {
  KVERN_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Parse(source));
  auto checkpoint = std::unique_ptr<Checkpoint>(new Checkpoint());
  KVERN_ASSIGN_OR_RETURN(checkpoint->config_, GgufModelConfig(file));
  checkpoint->tensors_.reserve(file.tensors().size());
  for (const GgufTensor& tensor : file.tensors()) {
    TensorInfo info;
    info.name = HfNameOfGguf(tensor.name);
    if (tensor.type->dtype) {
      info.dtype = *tensor.type->dtype;
    } else {
      info.unread_type = tensor.type->name;
    }
    info.shape = tensor.shape;
    info.bytes = tensor.bytes;
    info.offset = tensor.offset;
    info.interleaved_rows = StoredInterleaved(info.name);
    checkpoint->tensors_.push_back(std::move(info));
  }
  checkpoint->name_ = source->name();
  checkpoint->sources_.push_back(std::move(source));
  KVERN_RETURN_IF_ERROR(checkpoint->Finish());
  // Last, because it is the one part that takes memory: only for a file that is right so far.
  KVERN_ASSIGN_OR_RETURN(checkpoint->tokenizer_,
                         GgufTokenizer(file, checkpoint->config_.vocab_size));
  return checkpoint;
}

// Sorts and checks the tensor table against the configuration, and computes the fingerprint.
absl::Status Checkpoint::Finish() {
  auto by_name = [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; };
  std::sort(tensors_.begin(), tensors_.end(), by_name);
  for (size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i - 1].name != tensors_[i].name) continue;
    return InvalidArgument(sources_[tensors_[i].source]->name(), ": tensor ",
                           Quoted(tensors_[i].name), " is there twice");
  }
  auto check = [this](const std::string& name, const std::vector<uint64_t>& shape) {
    KVERN_ASSIGN_OR_RETURN(const TensorInfo* tensor, Find(name));
    if (tensor->shape == shape) return absl::OkStatus();
    return InvalidArgument(sources_[tensor->source]->name(), ": tensor ", Quoted(name),
                           " has shape [", absl::StrJoin(tensor->shape, ", "),
                           "], the configuration calls for [", absl::StrJoin(shape, ", "), "]");
  };
  KVERN_RETURN_IF_ERROR(ForEachModelTensor(config_, check));
  Hasher hasher;
  HashConfig(config_, hasher);
  for (const TensorInfo& tensor : tensors_) HashTensor(tensor, hasher);
  for (const auto& source : sources_) hasher.Add(source->size());
  fingerprint_ = hasher.state();
  return absl::OkStatus();
}

bool Checkpoint::Has(std::string_view name) const {
  auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                             [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  return it != tensors_.end() && it->name == name;
}

absl::StatusOr<const TensorInfo*> Checkpoint::Find(std::string_view name) const {
  auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                             [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  if (it == tensors_.end() || it->name != name) {
    return InvalidArgument(name_, ": tensor ", Quoted(name), " is missing");
  }
  if (!it->unread_type.empty()) {
    return Unimplemented(sources_[it->source]->name(), ": tensor ", Quoted(name), " has type ",
                         it->unread_type, ", which is not read here");
  }
  return &*it;
}

absl::Status Checkpoint::ReadBytes(const TensorInfo& tensor, uint64_t byte_offset,
                                   std::span<std::byte> out) const {
  KVERN_CHECK_LT(tensor.source, sources_.size());
  if (byte_offset > tensor.bytes || out.size() > tensor.bytes - byte_offset) {
    return InvalidArgument("tensor ", Quoted(tensor.name), " has ", tensor.bytes, " bytes; ",
                           out.size(), " bytes at offset ", byte_offset, " leave it");
  }
  return sources_[tensor.source]->ReadAt(tensor.offset + byte_offset, out);
}

uint64_t Checkpoint::total_bytes() const {
  uint64_t bytes = 0;
  for (const auto& source : sources_) bytes += source->size();
  return bytes;
}

}  // namespace kvern
