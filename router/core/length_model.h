// How long outputs turn out to be: an online histogram of output lengths, and the quantile of what
// a request that has produced some tokens will come to. One per tenant, one for all (the prior).
// After "past-future" scheduling (Gong et al., ASPLOS 2025). Integers only; bounded memory.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvern::router {

class LengthModel {
 public:
  // A request ended by itself (end of text, stop or max_tokens) after `tokens` > 0 output tokens.
  void Observe(uint32_t tokens);

  uint64_t count() const { return total_; }  // of the observations that still weigh

 private:
  friend class LengthForecast;
  // Eight bins per doubling: a bin's upper edge is at most 1/8 above any length in it.
  static constexpr size_t kBins = 8 * 30;
  static size_t BinOf(uint32_t tokens);
  static uint32_t UpperEdge(size_t bin);

  std::array<uint32_t, kBins> bins_{};
  uint64_t total_ = 0;
  size_t used_bins_ = 0;  // bins beyond are empty
};

// Total output tokens of a request, as the two models expect them.
class LengthForecast {
 public:
  // `percent`: the quantile, 0 to 100. Both models outlive the forecast.
  LengthForecast(const LengthModel& own, const LengthModel& all, uint32_t percent)
      : own_(own), all_(all), percent_(percent) {}

  // The smallest length L such that `percent` % of the outputs longer than `produced` end at or
  // before L; at least produced + 1, at most max_tokens. With too few observations: max_tokens.
  // REQUIRES: produced < max_tokens. O(bins).
  uint32_t Total(uint32_t produced, uint32_t max_tokens) const;

 private:
  const LengthModel& own_;
  const LengthModel& all_;
  uint32_t percent_;
};

}  // namespace kvern::router
