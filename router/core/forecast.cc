#include "router/core/forecast.h"

#include <algorithm>

#include "schemas/ids.h"

namespace kvern::router {
namespace {

bool LongerFirst(const ForecastItem& a, const ForecastItem& b) { return a.remaining > b.remaining; }

// What is held when the items up to now have come to their ends together with one that ends at
// `step`: at that moment every longer one has grown by `step` tokens per choice.
uint64_t BlocksAt(uint64_t tokens, uint64_t growth, uint64_t step) {
  return ExpectedBlocks(tokens + growth * step, growth);
}

}  // namespace

uint64_t ExpectedBlocks(uint64_t tokens, uint64_t sequences) {
  return (tokens + sequences * (kBlockSize / 2) + kBlockSize - 1) / kBlockSize;
}

void Forecast::Clear() {
  items_.clear();
  peak_ = 0;
}

void Forecast::Settle() {
  std::sort(items_.begin(), items_.end(), LongerFirst);
  peak_ = 0;
  uint64_t tokens = 0;
  uint64_t growth = 0;
  for (const ForecastItem& item : items_) {
    tokens += item.tokens;
    growth += item.growth;
    peak_ = std::max(peak_, BlocksAt(tokens, growth, item.remaining));
  }
}

uint64_t Forecast::PeakWith(const ForecastItem& added) const {
  uint64_t peak = 0;
  uint64_t tokens = 0;
  uint64_t growth = 0;
  bool taken = false;
  auto take = [&](const ForecastItem& item) {
    tokens += item.tokens;
    growth += item.growth;
    peak = std::max(peak, BlocksAt(tokens, growth, item.remaining));
  };
  for (const ForecastItem& item : items_) {
    if (!taken && item.remaining < added.remaining) {
      take(added);
      taken = true;
    }
    take(item);
  }
  if (!taken) take(added);
  return peak;
}

void Forecast::Insert(const ForecastItem& item) {
  peak_ = PeakWith(item);
  items_.insert(std::upper_bound(items_.begin(), items_.end(), item, LongerFirst), item);
}

}  // namespace kvern::router
