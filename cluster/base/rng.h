// Random numbers whose every bit follows from their key, on every compiler and machine.
#pragma once

#include <cstdint>

namespace kvern {

// SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014): a bijection that mixes all bits.
constexpr uint64_t Mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

// Counter-based generator: the same (key, a, b, c) gives the same bits, no state is kept.
// In two parts, for whoever draws many times with the same (key, a).
constexpr uint64_t HashStem(uint64_t key, uint64_t a) { return Mix64(Mix64(key) ^ a); }
constexpr uint64_t HashFromStem(uint64_t stem, uint64_t b, uint64_t c = 0) {
  return Mix64(Mix64(stem + b) ^ c);
}
constexpr uint64_t HashCounter(uint64_t key, uint64_t a, uint64_t b = 0, uint64_t c = 0) {
  return HashFromStem(HashStem(key, a), b, c);
}

// A uniform float64 in (0, 1): never 0 and never 1, so its logarithm is finite.
constexpr double UnitInterval(uint64_t bits) {
  return (static_cast<double>(bits >> 12) + 0.5) * 0x1p-52;
}

// A stream of numbers from one seed. The distributions are our own: the standard library's differ
// between implementations.
class Rng {
  __extension__ using Wide = unsigned __int128;

 public:
  explicit Rng(uint64_t seed) : key_(Mix64(seed)) {}

  uint64_t Next() { return HashCounter(key_, counter_++); }

  // Uniform in [0, bound). REQUIRES: bound > 0. The bias of the multiply is below 2^-32 for bounds
  // under 2^32.
  uint64_t Below(uint64_t bound) {
    return static_cast<uint64_t>((static_cast<Wide>(Next()) * bound) >> 64);
  }

  // Uniform in [low, high]. REQUIRES: low <= high.
  int64_t Between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(Below(static_cast<uint64_t>(high - low) + 1));
  }

  // True `numerator` times out of `denominator`.
  bool Chance(uint64_t numerator, uint64_t denominator) { return Below(denominator) < numerator; }

  // An independent stream: drawing from it does not shift this one.
  Rng Fork(uint64_t name) const { return Rng(HashCounter(key_, ~name)); }

 private:
  uint64_t key_;
  uint64_t counter_ = 0;
};

}  // namespace kvern
