#include "kernels/cpu/rows.h"

#include <cmath>

#include "kernels/cpu/packed.h"
#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/rows.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

// Calls body(i, load, store) for each 16 columns, with loads and stores of fewer lanes at the end.
template <class Body>
HWY_INLINE void ForEach16(int64_t n, const Body& body) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) body(i, size_t{16});
  if (i < n) body(i, static_cast<size_t>(n - i));
}
HWY_INLINE Vec16 LoadN16(const float* p, size_t count) {
  return count == 16 ? Load16(p) : LoadFirst16(p, count);
}
HWY_INLINE void StoreN16(Vec16 v, float* p, size_t count) {
  if (count == 16) {
    Store16(v, p);
  } else {
    StoreFirst16(v, p, count);
  }
}

void RmsNorm(const float* delta, float* x, const float* weight, float eps, int64_t n, float* out) {
  Vec16 squares = Zero16();
  ForEach16(n, [&](int64_t i, size_t count) HWY_ATTR {
    Vec16 v = LoadN16(x + i, count);
    if (delta != nullptr) {
      v = Add16(v, LoadN16(delta + i, count));
      StoreN16(v, x + i, count);
    }
    squares = Fma16(v, v, squares);
  });
  const Vec16 factor = Set16(1.0f / std::sqrt(Sum16(squares) / static_cast<float>(n) + eps));
  ForEach16(n, [&](int64_t i, size_t count) HWY_ATTR {
    const Vec16 scaled = Mul16(LoadN16(x + i, count), factor);
    StoreN16(Mul16(scaled, LoadN16(weight + i, count)), out + i, count);
  });
}

void SwiGlu(const float* gate, const float* up, int64_t n, float* out) {
  ForEach16(n, [&](int64_t i, size_t count) HWY_ATTR {
    const Vec16 g = LoadN16(gate + i, count);
    const Vec16 denominator = Add16(Set16(1), Exp16(Sub16(Zero16(), g)));
    StoreN16(Mul16(Div16(g, denominator), LoadN16(up + i, count)), out + i, count);
  });
}

void Rope(float* head, const float* cos, const float* sin, int64_t half) {
  ForEach16(half, [&](int64_t i, size_t count) HWY_ATTR {
    const Vec16 a = LoadN16(head + i, count);
    const Vec16 b = LoadN16(head + half + i, count);
    const Vec16 c = LoadN16(cos + i, count);
    const Vec16 s = LoadN16(sin + i, count);
    StoreN16(Sub16(Mul16(a, c), Mul16(b, s)), head + i, count);
    StoreN16(Add16(Mul16(b, c), Mul16(a, s)), head + half + i, count);
  });
}

// As ToBf16 of packed.h.
HWY_INLINE VU RoundToBf16(VF x) {
  const DU du;
  const VU bits = hn::BitCast(du, x);
  const VU odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  const VU rounded = hn::ShiftRight<16>(hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7FFFu))));
  const VU nan = hn::Or(hn::ShiftRight<16>(bits), hn::Set(du, 0x40u));
  // Comparing x with itself would not do: Highway's AVX2 inequality is false for NaN.
  const auto magnitude = hn::BitCast(DI(), hn::And(bits, hn::Set(du, 0x7FFFFFFFu)));
  const auto is_nan = hn::RebindMask(du, hn::Gt(magnitude, hn::Set(DI(), 0x7F800000)));
  return hn::IfThenElse(is_nan, nan, rounded);
}

void ToBf16Row(const float* x, int64_t n, uint16_t* out) {
  const hn::Rebind<uint16_t, DF> d16;
  ForEach16(n, [&](int64_t i, size_t count) HWY_ATTR {
    const Vec16 v = LoadN16(x + i, count);
    uint16_t lanes[16];
    KVERN_EACH_REG {
      const auto halves = hn::DemoteTo(d16, hn::BitCast(DI(), RoundToBf16(v.r[e])));
      hn::StoreU(halves, d16, lanes + e * kRegLanes);
    }
    std::memcpy(out + i, lanes, count * sizeof(uint16_t));
  });
}

constexpr RowKernels kRows{&RmsNorm, &SwiGlu, &Rope, &ToBf16Row};

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvern::cpu {

const RowKernels& RowsFor(Isa isa) { return *KVERN_TABLE_FOR(kRows, isa); }

}  // namespace kvern::cpu
#endif  // HWY_ONCE
