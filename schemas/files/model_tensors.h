// The tensors that a configuration calls for, under Hugging Face names.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "schemas/files/model_config.h"

namespace kvern {

// Calls `visit` with the name and shape (rows first) of every tensor a Llama of this shape needs;
// stops at the first error and returns it.
absl::Status ForEachModelTensor(
    const ModelConfig& config,
    const std::function<absl::Status(const std::string& name, const std::vector<uint64_t>& shape)>&
        visit);

// "blk.3.attn_q.weight" -> "model.layers.3.self_attn.q_proj.weight". A name that is not one of a
// Llama's is returned as it is.
std::string HfNameOfGguf(std::string_view name);

}  // namespace kvern
