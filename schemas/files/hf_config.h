// config.json and generation_config.json of Hugging Face's Llama models.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "schemas/files/model_config.h"

namespace kvern {

// Checked as model_config.h promises. Reads the spelling of transformers 4 (rope_theta,
// rope_scaling) and 5 (rope_parameters). Other architectures, activations, rope variants and
// quantised checkpoints are refused by name; `auto_map` and other unknown fields are ignored, no
// code from a model is ever run. The end-of-sequence ids of both files are joined.
// `where` is the path of config.json, for errors.
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view config_json,
                                          std::optional<std::string_view> generation_config_json,
                                          const std::string& where);

}  // namespace kvern
