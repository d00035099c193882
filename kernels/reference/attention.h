// Attention of one query row over the keys it sees, in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace kvern::reference {

// q: [dim]; keys, values: `count` rows of [dim]. Returns softmax(q k / sqrt(dim)) v, [dim].
inline std::vector<double> Attention(const std::vector<double>& q,
                                     const std::vector<std::vector<double>>& keys,
                                     const std::vector<std::vector<double>>& values) {
  const size_t dim = q.size();
  std::vector<double> scores(keys.size());
  for (size_t j = 0; j < keys.size(); ++j) {
    for (size_t d = 0; d < dim; ++d) scores[j] += q[d] * keys[j][d];
    scores[j] /= std::sqrt(static_cast<double>(dim));
  }
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  std::vector<double> out(dim);
  for (size_t j = 0; j < keys.size(); ++j) {
    const double weight = std::exp(scores[j] - max);
    sum += weight;
    for (size_t d = 0; d < dim; ++d) out[d] += weight * values[j][d];
  }
  for (double& x : out) x /= sum;
  return out;
}

}  // namespace kvern::reference
