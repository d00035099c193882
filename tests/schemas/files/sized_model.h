// Models of any shape with small weights, in both formats.
#pragma once

#include <string>

#include "tests/schemas/files/model_builder.h"

namespace kvern {

struct ModelSizes {
  uint32_t heads = 2;
  uint32_t kv_heads = 1;
  uint32_t head_dim = 16;
  uint32_t hidden = 32;
  uint32_t intermediate = 32;
  uint32_t vocab = 8;
  uint32_t layers = 1;
  uint32_t max_seq_len = 64;

  std::string ToString() const;
};

// F32, tied embeddings, without a tokenizer.
GgufWriter SizedGguf(const ModelSizes& sizes);
// The same tensors, of one layer, all zero.
MemoryFolder SizedFolder(const ModelSizes& sizes);

}  // namespace kvern
