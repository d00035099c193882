// A model on disk, whatever its format: one GGUF file, or a folder with config.json and
// safetensors. The one thing the loader and the router see of model files.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "schemas/files/byte_source.h"
#include "schemas/files/dtype.h"
#include "schemas/files/model_config.h"
#include "schemas/files/tokenizer_data.h"

namespace kvern {

// One tensor. Names are Hugging Face's ("model.layers.0.self_attn.q_proj.weight") in both formats.
struct TensorInfo {
  std::string name;
  FileDtype dtype = FileDtype::kF32;
  std::vector<uint64_t> shape;  // rows first: [out_features, in_features], or [n]
  uint64_t bytes = 0;
  uint32_t source = 0;  // which file of the checkpoint
  uint64_t offset = 0;  // bytes from the start of that file
  // Rows of each head are stored for adjacent-pair rope (GGUF's Llama q and k); see SourceRow.
  bool interleaved_rows = false;
  // Not empty: the file's own type, which Kvern does not read; `dtype` then means nothing.
  std::string unread_type;

  uint64_t rows() const {  // 1 for a vector
    uint64_t count = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
    return count;
  }
  uint64_t row_elements() const { return shape.empty() ? 1 : shape.back(); }
  uint64_t row_bytes() const {  // Whole blocks: checked when the file was opened.
    return row_elements() / Info(dtype).block_elements * Info(dtype).block_bytes;
  }
};

// Where row `row` of a q or k projection ([heads * head_dim, hidden], half-pair rope order: i pairs
// with i + head_dim/2) lies in a file with adjacent-pair order (2i pairs with 2i + 1). Biases too.
constexpr uint64_t InterleavedRow(uint64_t head_dim, uint64_t row) {
  uint64_t half = head_dim / 2;
  uint64_t in_head = row % head_dim;
  return row - in_head + 2 * (in_head % half) + in_head / half;
}

// The files of one folder, by plain file name; NotFound when there is none of that name.
struct ModelFolder {
  std::string name;  // for error texts: a path
  std::function<absl::StatusOr<std::shared_ptr<const ByteSource>>(const std::string& file)> open;
};

// Immutable after Open; every method is thread-safe.
class Checkpoint {
 public:
  // `path` is a GGUF file or a folder. Everything that can be wrong with shapes, sizes, names and
  // numbers is found here: when Open returns, every tensor that the configuration calls for exists
  // with the right shape and a type that can be read. Reads no weights.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  const ModelConfig& config() const { return config_; }
  // Null when the files hold no tokenizer that is read here: drive such a model by token ids.
  const TokenizerData* tokenizer() const { return tokenizer_ ? &*tokenizer_ : nullptr; }

  // Sorted by name; also tensors that the model does not use.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // The error names the tensor, and its type if it is one that cannot be read.
  absl::StatusOr<const TensorInfo*> Find(std::string_view name) const;
  bool Has(std::string_view name) const;

  // Fills `out` with the tensor's bytes from `byte_offset` on. REQUIRES: a tensor of this
  // checkpoint. Fails if the range leaves the tensor, the file shrank, or the disk fails.
  absl::Status ReadBytes(const TensorInfo& tensor, uint64_t byte_offset,
                         std::span<std::byte> out) const;

  // The row of the file that holds row `row` of the model: InterleavedRow for tensors stored so,
  // else `row`. For biases of q and k the "rows" are the elements.
  uint64_t SourceRow(const TensorInfo& tensor, uint64_t row) const {
    return tensor.interleaved_rows ? InterleavedRow(config_.head_dim, row) : row;
  }

  // Equal on ranks that opened the same model: a hash of the configuration, the tensor table
  // (names, types, shapes, places) and the file sizes. Not of the weights.
  uint64_t Fingerprint() const { return fingerprint_; }
  uint64_t total_bytes() const;  // of all files

  // The two formats, over any source of bytes: for tests and fuzz targets.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> FromGguf(
      std::shared_ptr<const ByteSource> source);
  static absl::StatusOr<std::unique_ptr<Checkpoint>> FromFolder(const ModelFolder& folder);

 private:
  Checkpoint() = default;
  absl::Status Finish();

  std::string name_;  // for error texts: the path
  ModelConfig config_;
  std::optional<TokenizerData> tokenizer_;
  std::vector<TensorInfo> tensors_;
  std::vector<std::shared_ptr<const ByteSource>> sources_;
  uint64_t fingerprint_ = 0;
};

}  // namespace kvern
