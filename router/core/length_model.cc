#include "router/core/length_model.h"

#include <algorithm>
#include <bit>

#include "cluster/base/check.h"

namespace kvern::router {
namespace {

// Old observations lose half of their weight whenever this many have come together, so that the
// model follows a change of the workload within a few thousand requests.
constexpr uint64_t kWindow = 4096;
// Below, nothing is known: the worst case is assumed.
constexpr uint64_t kMinObservations = 16;
// The prior weighs as much as this many observations of the tenant's own.
constexpr uint64_t kPriorWeight = 64;
constexpr uint64_t kScale = 1024;

}  // namespace

size_t LengthModel::BinOf(uint32_t tokens) {
  if (tokens < 8) return tokens;
  size_t octave = static_cast<size_t>(std::bit_width(tokens)) - 1;  // >= 3
  size_t eighth = (tokens >> (octave - 3)) & 7;
  return (octave - 2) * 8 + eighth;
}

uint32_t LengthModel::UpperEdge(size_t bin) {
  if (bin < 8) return static_cast<uint32_t>(bin);
  size_t octave = bin / 8 + 2;
  uint64_t next = (uint64_t{8} + bin % 8 + 1) << (octave - 3);
  return static_cast<uint32_t>(std::min<uint64_t>(next - 1, UINT32_MAX));
}

void LengthModel::Observe(uint32_t tokens) {
  KVERN_CHECK(tokens > 0);
  size_t bin = BinOf(tokens);
  ++bins_[bin];
  ++total_;
  used_bins_ = std::max(used_bins_, bin + 1);
  if (total_ < kWindow) return;
  total_ = 0;
  for (size_t i = 0; i < used_bins_; ++i) total_ += bins_[i] /= 2;
}

uint32_t LengthForecast::Total(uint32_t produced, uint32_t max_tokens) const {
  KVERN_CHECK_LT(produced, max_tokens);
  if (percent_ == 0) return produced + 1;
  if (all_.total_ < kMinObservations || percent_ >= 100) return max_tokens;
  // Weights: an own observation kScale, all of the prior together kPriorWeight * kScale.
  uint64_t prior = kPriorWeight * kScale / all_.total_;
  size_t first = LengthModel::BinOf(produced + 1);
  uint64_t above = 0;
  for (size_t i = first; i < all_.used_bins_; ++i) {
    above += own_.bins_[i] * kScale + all_.bins_[i] * prior;
  }
  if (above == 0) {  // longer than all that was seen: as long again
    return static_cast<uint32_t>(std::min<uint64_t>(max_tokens, 2 * uint64_t{produced} + 16));
  }
  uint64_t wanted = (above * percent_ + 99) / 100;
  uint64_t sum = 0;
  size_t bin = first;
  for (;; ++bin) {
    sum += own_.bins_[bin] * kScale + all_.bins_[bin] * prior;
    if (sum >= wanted) break;
  }
  return std::clamp(LengthModel::UpperEdge(bin), produced + 1, max_tokens);
}

}  // namespace kvern::router
