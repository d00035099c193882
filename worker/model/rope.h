// Cosines and sines of the rotary position embedding.
#pragma once

#include <cstdint>
#include <vector>

#include "schemas/files/model_config.h"

namespace kvern {

// Radians per position of each pair, [head_dim / 2]: theta^(-2i / head_dim), stretched as Llama 3.1
// does when the configuration says so (the formula of its release notes and of Hugging Face's
// "llama3").
std::vector<double> RopeFrequencies(const RopeConfig& config, uint32_t head_dim);

// cos and sin of one position, [head_dim / 2] each.
void FillRopeRow(const std::vector<double>& frequencies, uint32_t position, float* cos, float* sin);

}  // namespace kvern
