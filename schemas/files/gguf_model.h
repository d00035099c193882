// What the metadata of a GGUF file say about the model and its tokenizer.
#pragma once

#include <optional>

#include "schemas/files/gguf.h"
#include "schemas/files/model_config.h"
#include "schemas/files/tokenizer_data.h"

namespace kvern {

// Checked as model_config.h promises; architectures and variants other than plain Llama are refused
// by name.
absl::StatusOr<ModelConfig> GgufModelConfig(const GgufFile& file);

// Absent when the file has no tokenizer or says that it has "none". Lengths of the arrays agree
// with `vocab_size` and special ids are below it; whether merges refer to tokens is the tokenizer's
// check.
absl::StatusOr<std::optional<TokenizerData>> GgufTokenizer(const GgufFile& file,
                                                           uint32_t vocab_size);

}  // namespace kvern
