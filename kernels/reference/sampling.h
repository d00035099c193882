// Candidates, log-sum-exp and Gumbel noise of a logits row, in float64 and by sorting.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvern::reference {

// Columns of the k largest logits, value descending, then column ascending.
inline std::vector<uint32_t> Top(const std::vector<float>& logits, size_t k) {
  std::vector<uint32_t> columns(logits.size());
  for (size_t i = 0; i < columns.size(); ++i) columns[i] = static_cast<uint32_t>(i);
  std::stable_sort(columns.begin(), columns.end(),
                   [&](uint32_t a, uint32_t b) { return logits[a] > logits[b]; });
  columns.resize(std::min(k, columns.size()));
  return columns;
}

// The sum of e^((x - max) * inverse_temperature).
inline double SumExp(const std::vector<float>& logits, double inverse_temperature) {
  const double max = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (float x : logits) sum += std::exp((static_cast<double>(x) - max) * inverse_temperature);
  return sum;
}

// Gumbel noise of a uniform number in (0, 1).
inline double Gumbel(double u) { return -std::log(-std::log(u)); }

}  // namespace kvern::reference
