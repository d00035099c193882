#include "kernels/cuda/sampling_types.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace kvern::gpu {

SumPart FoldSums(std::span<const SumPart> parts, float inverse_temperature) {
  SumPart whole = {-std::numeric_limits<float>::infinity(), 0};
  for (const SumPart& part : parts) whole.max = std::max(whole.max, part.max);
  for (const SumPart& part : parts) {
    if (part.sum == 0) continue;  // only columns of minus infinity
    const double below = static_cast<double>(part.max) - static_cast<double>(whole.max);
    whole.sum += part.sum * std::exp(below * static_cast<double>(inverse_temperature));
  }
  return whole;
}

ScoredColumn ChosenColumn(uint64_t best) {
  if (best == 0) return {-std::numeric_limits<float>::infinity(), 0};
  const auto ordered = static_cast<uint32_t>(best >> 32);
  const uint32_t bits = (ordered & 0x80000000u) != 0 ? ordered & 0x7fffffffu : ~ordered;
  return {std::bit_cast<float>(bits), ~static_cast<uint32_t>(best)};
}

}  // namespace kvern::gpu
