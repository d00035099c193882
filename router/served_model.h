// What the router needs of a model: its limits, and its text. No weights.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "cluster/base/status.h"
#include "router/core/router.h"
#include "router/io/router_loop.h"
#include "router/text/tokenizer.h"

namespace kvern {

// Immutable once loaded; outlives the loop.
struct ServedModel {
  std::string name;
  uint32_t max_seq_len = 0;
  uint32_t vocab_size = 0;
  std::vector<uint32_t> eos_ids;
  std::optional<Tokenizer> tokenizer;  // absent: only token ids are served
  std::unique_ptr<TextFilterFactory> filters;
  absl::StatusOr<ChatTemplate> chat_template = absl::UnknownError("");

  RouterText Text() const;
};

struct ServedModelOptions {
  std::string path;           // a GGUF file or a folder
  std::string name;           // empty: the file's
  std::string chat_template;  // empty: recognised from the model
  uint32_t max_seq_len = 0;   // 0: the model's
};

// invalid_argument, naming the option: a limit above the model's, an unknown template name. Else as
// Checkpoint::Open and Tokenizer::Create.
absl::StatusOr<std::unique_ptr<ServedModel>> LoadServedModel(const ServedModelOptions& options);

}  // namespace kvern
