// Requests and results of the sampling kernels, and how the host reads the results. Plain C++.
#pragma once

#include <cstdint>
#include <span>

namespace kvern::gpu {

struct SampleRow {
  int32_t row = 0;
  float inverse_temperature = 1;  // LogSumExp, GumbelMax
  uint64_t key = 0;               // GumbelMax
};

inline constexpr int32_t kMaxCandidates = 1024;
struct ScoredColumn {
  float value = 0;
  uint32_t column = 0;
};

// Columns of a row are cut into parts of kSumColumns for the sums.
inline constexpr int32_t kSumColumns = 4096;
constexpr int32_t SumParts(int32_t columns) { return (columns + kSumColumns - 1) / kSumColumns; }
struct SumPart {
  float max = 0;
  double sum = 0;
};

// max and sum of a whole row from those of its parts, in ascending order.
SumPart FoldSums(std::span<const SumPart> parts, float inverse_temperature);

// What LaunchGumbelMax left in `best`: minus infinity, column 0 if all values were NaN.
ScoredColumn ChosenColumn(uint64_t best);

}  // namespace kvern::gpu
