// How many blocks the running standard requests of a group will hold at most, if each ends where it
// is expected to and until then all grow by one token a step ("future peak": Gong et al., ASPLOS
// 2025).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvern::router {

// One running request.
struct ForecastItem {
  uint64_t tokens = 0;     // it holds now, over all its choices
  uint32_t remaining = 0;  // steps to its expected end
  uint32_t growth = 1;     // tokens per step: its choices
};

class Forecast {
 public:
  void Clear();
  void Add(const ForecastItem& item) { items_.push_back(item); }
  // After the last Add. O(n log n).
  void Settle();

  // The peak, in blocks.
  uint64_t Peak() const { return peak_; }
  // The peak if `item` ran too. O(n).
  uint64_t PeakWith(const ForecastItem& item) const;
  // Adds one to what was settled. O(n).
  void Insert(const ForecastItem& item);

  // By remaining steps, the longest first.
  const std::vector<ForecastItem>& items() const { return items_; }

 private:
  std::vector<ForecastItem> items_;
  uint64_t peak_ = 0;
};

// Blocks that `tokens` tokens in `sequences` sequences take: the last block of each is half full in
// the mean.
uint64_t ExpectedBlocks(uint64_t tokens, uint64_t sequences);

}  // namespace kvern::router
