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

// The same for many positions, some twenty times as fast: each run of positions is turned by the
// angle of its first one. In double, so hardly ever is the float another, and then its neighbour.
class RopeRuns {
 public:
  static constexpr uint32_t kRun = 256;

  explicit RopeRuns(const std::vector<double>& frequencies);

  // cos and sin of positions [first, first + count), [count, head_dim / 2] each. REQUIRES: `first`
  // is a multiple of kRun, count <= kRun. For any thread.
  void Fill(uint32_t first, uint32_t count, float* cos, float* sin) const;

 private:
  std::vector<double> frequencies_;
  std::vector<double> cos_;  // [kRun, head_dim / 2], of positions from 0 on
  std::vector<double> sin_;
};

}  // namespace kvern
