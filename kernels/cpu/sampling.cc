#include "kernels/cpu/sampling.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/sampling.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

// Order of candidates: better ones first.
struct Better {
  bool operator()(const ScoredColumn& a, const ScoredColumn& b) const {
    return a.value != b.value ? a.value > b.value : a.column < b.column;
  }
};

HWY_INLINE bool AnyAbove(const float* x, float threshold) {
  const Vec16 v = Load16(x);
  bool any = false;
  KVERN_EACH_REG { any = any || !hn::AllFalse(DF(), hn::Gt(v.r[e], hn::Set(DF(), threshold))); }
  return any;
}

size_t Top(const float* logits, int64_t n, int64_t k, ScoredColumn* out) {
  const int64_t count = std::min(n, k);
  if (count <= 0) return 0;
  // A heap whose front is the worst of the best so far. Later columns lose ties, so only a larger
  // value may enter.
  for (int64_t i = 0; i < count; ++i) {
    out[i] = {std::isnan(logits[i]) ? kLowest : logits[i], static_cast<uint32_t>(i)};
  }
  std::make_heap(out, out + count, Better());
  int64_t i = count;
  while (i < n) {
    if (i + 16 <= n && !AnyAbove(logits + i, out[0].value)) {
      i += 16;
      continue;
    }
    const int64_t end = std::min(n, i + 16);
    for (; i < end; ++i) {
      if (!(logits[i] > out[0].value)) continue;
      std::pop_heap(out, out + count, Better());
      out[count - 1] = {logits[i], static_cast<uint32_t>(i)};
      std::push_heap(out, out + count, Better());
    }
  }
  std::sort_heap(out, out + count, Better());
  return static_cast<size_t>(count);
}

float MaxOf(const float* logits, int64_t n) {
  Vec16 best = Set16(kLowest);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) best = Max16(best, Load16(logits + i));
  float max = MaxLane16(best);
  for (; i < n; ++i) max = logits[i] > max ? logits[i] : max;
  return max;
}

double LogSumExp(const float* logits, int64_t n, float inverse_temperature, float* max) {
  *max = MaxOf(logits, n);
  const Vec16 top = Set16(*max);
  const Vec16 scale = Set16(inverse_temperature);
  double lanes[16] = {};
  for (int64_t i = 0; i < n; i += 16) {
    const size_t count = std::min<size_t>(16, static_cast<size_t>(n - i));
    const Vec16 x = count == 16 ? Load16(logits + i) : LoadFirst16(logits + i, count);
    float terms[16];
    Store16(Exp16(Mul16(Sub16(x, top), scale)), terms);
    for (size_t lane = 0; lane < count; ++lane) lanes[lane] += static_cast<double>(terms[lane]);
  }
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

// ---- Gumbel noise. Only operations that round the same everywhere: no fused multiply-add.

using DD = hn::CappedTag<double, 8>;
using DU64 = hn::RebindToUnsigned<DD>;
using VD = hn::Vec<DD>;
using VU64 = hn::Vec<DU64>;

// As kvern::Mix64 of cluster/base/rng.h.
HWY_INLINE VU64 Mix64(VU64 x) {
  const DU64 d;
  x = hn::Add(x, hn::Set(d, 0x9e3779b97f4a7c15ull));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<30>(x)), hn::Set(d, 0xbf58476d1ce4e5b9ull));
  x = hn::Mul(hn::Xor(x, hn::ShiftRight<27>(x)), hn::Set(d, 0x94d049bb133111ebull));
  return hn::Xor(x, hn::ShiftRight<31>(x));
}

// The natural logarithm of a positive normal x, within 3 units in the last place: x = 2^e m with m
// in [sqrt(1/2), sqrt(2)); log m = 2 atanh(f), f = (m - 1) / (m + 1), by its series up to f^21.
HWY_INLINE VD Log(VD x) {
  const DD d;
  const DU64 du;
  const VU64 bits = hn::BitCast(du, x);
  // Exponent and fraction, shifted so that the cut lies at sqrt(1/2) instead of 1.
  const VU64 sqrt_half = hn::Set(du, 0x3fe6a09e667f3bcdull);
  const VU64 shifted = hn::Sub(bits, sqrt_half);
  const VU64 exponent_bits = hn::And(shifted, hn::Set(du, 0xfff0000000000000ull));
  const VD m = hn::BitCast(d, hn::Sub(bits, exponent_bits));
  // The signed exponent as float64: biased to be positive, put into the low bits of 2^52.
  const VU64 biased =
      hn::And(hn::ShiftRight<52>(hn::Add(exponent_bits, hn::Set(du, 1024ull << 52))),
              hn::Set(du, 0xfffull));
  const VD magic = hn::BitCast(d, hn::Or(biased, hn::Set(du, 0x4330000000000000ull)));
  const VD e = hn::Sub(magic, hn::Set(d, 0x1p52 + 1024.0));
  const VD one = hn::Set(d, 1.0);
  const VD f = hn::Div(hn::Sub(m, one), hn::Add(m, one));
  const VD s = hn::Mul(f, f);
  VD series = hn::Set(d, 1.0 / 21);
  for (double c :
       {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3}) {
    series = hn::Add(hn::Mul(series, s), hn::Set(d, c));
  }
  const VD two_f = hn::Add(f, f);
  const VD log_m = hn::Add(two_f, hn::Mul(two_f, hn::Mul(s, series)));
  return hn::Add(hn::Mul(e, hn::Set(d, 0.693147180559945309417)), log_m);
}

// Noise of the ids first, first + 1, ... for one register.
HWY_INLINE VD GumbelNoise(uint64_t mixed_key, VU64 ids) {
  const DD d;
  const DU64 du;
  VU64 bits = Mix64(hn::Xor(hn::Set(du, mixed_key), ids));
  bits = Mix64(Mix64(bits));
  // (bits >> 12) * 2^-52 + 2^-53, exactly.
  const VU64 in_one_two = hn::Or(hn::ShiftRight<12>(bits), hn::Set(du, 0x3ff0000000000000ull));
  const VD u = hn::Add(hn::Sub(hn::BitCast(d, in_one_two), hn::Set(d, 1.0)), hn::Set(d, 0x1p-53));
  const VD zero = hn::Zero(d);
  return hn::Sub(zero, Log(hn::Sub(zero, Log(u))));
}

constexpr uint64_t MixKey(uint64_t x) {
  x += 0x9e3779b97f4a7c15ull;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

ScoredColumn GumbelMax(const float* logits, int64_t n, float inverse_temperature, uint64_t key,
                       uint64_t first_id) {
  const DD d;
  const DU64 du;
  const size_t lanes = hn::Lanes(d);
  const uint64_t mixed_key = MixKey(key);
  const double scale = static_cast<double>(inverse_temperature);
  ScoredColumn best{kLowest, 0};
  bool found = false;
  double noise[8];
  for (int64_t i = 0; i < n; i += static_cast<int64_t>(lanes)) {
    const uint64_t first = first_id + static_cast<uint64_t>(i);
    hn::StoreU(GumbelNoise(mixed_key, hn::Iota(du, first)), d, noise);
    const size_t count = std::min(lanes, static_cast<size_t>(n - i));
    for (size_t lane = 0; lane < count; ++lane) {
      const int64_t column = i + static_cast<int64_t>(lane);
      const auto value =
          static_cast<float>(static_cast<double>(logits[column]) * scale + noise[lane]);
      if (value > best.value || (!found && !std::isnan(value))) {
        best = {value, static_cast<uint32_t>(column)};
        found = true;
      }
    }
  }
  return best;
}

constexpr SamplingKernels kSampling{&Top, &LogSumExp, &GumbelMax};

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvern::cpu {

const SamplingKernels& SamplingFor(Isa isa) { return *KVERN_TABLE_FOR(kSampling, isa); }

}  // namespace kvern::cpu
#endif  // HWY_ONCE
