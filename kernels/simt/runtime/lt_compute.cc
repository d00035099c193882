// The arithmetic of the cuBLASLt stand-in, in a file of its own so that it is optimised.
#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "kernels/simt/runtime/lt_types.h"

namespace kvern::simt {
namespace {

float FromBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t ToBf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Where part `s` of K begins. Kernels that split cut the work of all their tiles, so that how many
// columns there are decides where within K they cut.
int64_t PartBegin(const LtProduct& p, int64_t s, int64_t splits) {
  if (s == 0 || s == splits) return s == 0 ? 0 : p.k;
  const int64_t part = p.k / splits;
  return part * s + (part > 0 ? p.n % part : 0);
}

// sum of a[i] * b[i], in the order of `algorithm`.
float Dot(const float* a, const float* b, const LtProduct& p, const LtAlgorithm& algorithm) {
  const auto splits = static_cast<int64_t>(algorithm.splits);
  const auto run = static_cast<int64_t>(algorithm.run);
  constexpr int64_t kLanes = 16;
  float total = 0;
  for (int64_t s = 0; s < splits; ++s) {
    const int64_t end = PartBegin(p, s + 1, splits);
    float part = 0;
    for (int64_t begin = PartBegin(p, s, splits); begin < end; begin += run) {
      const int64_t stop = std::min(begin + run, end);
      float lanes[kLanes] = {};
      int64_t i = begin;
      for (; i + kLanes <= stop; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) lanes[lane] += a[i + lane] * b[i + lane];
      }
      for (int64_t lane = 0; i < stop; ++i, ++lane) lanes[lane] += a[i] * b[i];
      float sum = 0;
      for (const float lane : lanes) sum += lane;
      part += sum;
    }
    total += part;
  }
  return total;
}

float BiasOf(const LtProduct& p, int64_t i) {
  if (p.bias == nullptr) return 0;
  return p.bias_bf16 ? FromBf16(static_cast<const uint16_t*>(p.bias)[i])
                     : static_cast<const float*>(p.bias)[i];
}

}  // namespace

void LtCompute(const LtProduct& p, const LtAlgorithm& algorithm) {
  std::vector<float> columns(static_cast<size_t>(p.n * p.k));
  for (int64_t j = 0; j < p.n; ++j) {
    for (int64_t k = 0; k < p.k; ++k) {
      columns[static_cast<size_t>(j * p.k + k)] = FromBf16(p.b[k * p.b_row + j * p.b_col]);
    }
  }
  std::vector<float> row(static_cast<size_t>(p.k));
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t k = 0; k < p.k; ++k) {
      row[static_cast<size_t>(k)] = FromBf16(p.a[i * p.a_row + k * p.a_col]);
    }
    const float bias = BiasOf(p, i);
    for (int64_t j = 0; j < p.n; ++j) {
      const float value = p.alpha * Dot(row.data(), columns.data() + j * p.k, p, algorithm) + bias;
      const int64_t at = i * p.d_row + j * p.d_col;
      if (p.d_bf16) {
        static_cast<uint16_t*>(p.d)[at] = ToBf16(value);
      } else {
        static_cast<float*>(p.d)[at] = value;
      }
    }
  }
}

}  // namespace kvern::simt
