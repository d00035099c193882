// out[m, n] = bias[n] + sum over k of x[m, k] w[n, k], in float64.
#pragma once

#include <cstddef>
#include <vector>

namespace kvern::reference {

// x: [m, k], w: [n, k], bias: [n] or empty. Returns [m, n].
inline std::vector<double> MatMul(const std::vector<float>& x, const std::vector<float>& w,
                                  const std::vector<float>& bias, size_t m, size_t n, size_t k) {
  std::vector<double> out(m * n);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      double sum = bias.empty() ? 0 : static_cast<double>(bias[j]);
      for (size_t c = 0; c < k; ++c) {
        sum += static_cast<double>(x[i * k + c]) * static_cast<double>(w[j * k + c]);
      }
      out[i * n + j] = sum;
    }
  }
  return out;
}

}  // namespace kvern::reference
