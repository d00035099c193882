// Norm, gated activation and rotary embedding of one row, in float64.
#pragma once

#include <cmath>
#include <cstddef>
#include <vector>

namespace kvern::reference {

// x / sqrt(mean(x^2) + eps) * weight.
inline std::vector<double> RmsNorm(const std::vector<double>& x, const std::vector<float>& weight,
                                   double eps) {
  double squares = 0;
  for (double v : x) squares += v * v;
  const double factor = 1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  std::vector<double> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * factor * static_cast<double>(weight[i]);
  return out;
}

// silu(gate) * up.
inline double SwiGlu(double gate, double up) { return gate / (1 + std::exp(-gate)) * up; }

// Rotates the pairs (i, i + half) of a head by the angles whose cos and sin are given, [half] each.
inline std::vector<double> Rope(const std::vector<double>& head, const std::vector<double>& cos,
                                const std::vector<double>& sin) {
  const size_t half = head.size() / 2;
  std::vector<double> out(head.size());
  for (size_t i = 0; i < half; ++i) {
    out[i] = head[i] * cos[i] - head[i + half] * sin[i];
    out[i + half] = head[i + half] * cos[i] + head[i] * sin[i];
  }
  return out;
}

}  // namespace kvern::reference
