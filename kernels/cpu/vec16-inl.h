// Sixteen float32 lanes, whatever the register width: one AVX-512 register, two AVX2 registers or
// sixteen scalars. Code written over Vec16 does the same arithmetic on every target. Included once
// per target by Highway's foreach_target.h, hence the toggled guard.
#if defined(KVERN_KERNELS_CPU_VEC16_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVERN_KERNELS_CPU_VEC16_INL_H_
#undef KVERN_KERNELS_CPU_VEC16_INL_H_
#else
#define KVERN_KERNELS_CPU_VEC16_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DU = hn::RebindToUnsigned<DF>;
using DI = hn::RebindToSigned<DF>;
using VF = hn::Vec<DF>;
using VU = hn::Vec<DU>;

inline constexpr size_t kRegLanes = HWY_TARGET == HWY_AVX3 ? 16 : HWY_TARGET == HWY_AVX2 ? 8 : 1;
inline constexpr size_t kRegs = 16 / kRegLanes;  // Registers of one Vec16.

// Loops that must become straight code over registers. Not on the plain target, which has one lane
// per register, nor under sanitizers, which would take minutes to compile what they make of it.
#undef KVERN_UNROLL
#if (HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define KVERN_UNROLL _Pragma("GCC unroll 16")
#else
#define KVERN_UNROLL
#endif
#undef KVERN_EACH_REG
#define KVERN_EACH_REG KVERN_UNROLL for (size_t e = 0; e < kRegs; ++e)

struct Vec16 {
  VF r[kRegs];
};
struct Vec16u {
  VU r[kRegs];
};

HWY_INLINE Vec16 Zero16() {
  Vec16 v;
  KVERN_EACH_REG v.r[e] = hn::Zero(DF());
  return v;
}
HWY_INLINE Vec16 Set16(float x) {
  Vec16 v;
  KVERN_EACH_REG v.r[e] = hn::Set(DF(), x);
  return v;
}
HWY_INLINE Vec16 Load16(const float* p) {
  Vec16 v;
  KVERN_EACH_REG v.r[e] = hn::LoadU(DF(), p + e * kRegLanes);
  return v;
}
HWY_INLINE void Store16(Vec16 v, float* p) {
  KVERN_EACH_REG hn::StoreU(v.r[e], DF(), p + e * kRegLanes);
}
// The first `count` < 16 lanes; the others are zero.
HWY_INLINE Vec16 LoadFirst16(const float* p, size_t count) {
  float lanes[16] = {};
  std::memcpy(lanes, p, count * sizeof(float));
  return Load16(lanes);
}
HWY_INLINE void StoreFirst16(Vec16 v, float* p, size_t count) {
  float lanes[16];
  Store16(v, lanes);
  std::memcpy(p, lanes, count * sizeof(float));
}

// a * b + c, fused where the target can.
HWY_INLINE Vec16 Fma16(Vec16 a, Vec16 b, Vec16 c) {
  KVERN_EACH_REG c.r[e] = hn::MulAdd(a.r[e], b.r[e], c.r[e]);
  return c;
}
HWY_INLINE Vec16 Add16(Vec16 a, Vec16 b) {
  KVERN_EACH_REG a.r[e] = hn::Add(a.r[e], b.r[e]);
  return a;
}
HWY_INLINE Vec16 Sub16(Vec16 a, Vec16 b) {
  KVERN_EACH_REG a.r[e] = hn::Sub(a.r[e], b.r[e]);
  return a;
}
HWY_INLINE Vec16 Mul16(Vec16 a, Vec16 b) {
  KVERN_EACH_REG a.r[e] = hn::Mul(a.r[e], b.r[e]);
  return a;
}
HWY_INLINE Vec16 Div16(Vec16 a, Vec16 b) {
  KVERN_EACH_REG a.r[e] = hn::Div(a.r[e], b.r[e]);
  return a;
}
HWY_INLINE Vec16 Max16(Vec16 a, Vec16 b) {
  KVERN_EACH_REG a.r[e] = hn::Max(a.r[e], b.r[e]);
  return a;
}

// The lanes combined in a fixed order: halves, quarters, eighths, pairs. `combine` is given two
// vectors of any width.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
template <class Combine>
HWY_INLINE float Fold16(const Vec16& v, const Combine& combine) {
  const hn::Full128<float> d128;
#if HWY_TARGET == HWY_AVX3
  const hn::Full256<float> d256;
  const auto eight = combine(hn::LowerHalf(d256, v.r[0]), hn::UpperHalf(d256, v.r[0]));
#else
  const auto eight = combine(v.r[0], v.r[1]);
#endif
  const auto four = combine(hn::LowerHalf(d128, eight), hn::UpperHalf(d128, eight));
  const auto two = combine(four, hn::Shuffle1032(four));
  return hn::GetLane(combine(two, hn::Shuffle2301(two)));
}
HWY_INLINE float Sum16(Vec16 v) {
  return Fold16(v, [](auto a, auto b) HWY_ATTR { return hn::Add(a, b); });
}
HWY_INLINE float MaxLane16(Vec16 v) {
  return Fold16(v, [](auto a, auto b) HWY_ATTR { return hn::Max(a, b); });
}
#else
HWY_INLINE float Sum16(Vec16 v) {
  float lanes[16];
  Store16(v, lanes);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}
HWY_INLINE float MaxLane16(Vec16 v) {
  float lanes[16];
  Store16(v, lanes);
  for (size_t width = 8; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) {
      lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    }
  }
  return lanes[0];
}
#endif

HWY_INLINE Vec16u Load16u(const void* p) {
  Vec16u v;
  const uint32_t* words = static_cast<const uint32_t*>(p);
  KVERN_EACH_REG v.r[e] = hn::LoadU(DU(), words + e * kRegLanes);
  return v;
}
// Of words that hold two bfloat16 each: the even elements are the low halves, the odd ones the
// high.
HWY_INLINE Vec16 LowBf16(const Vec16u& words) {
  Vec16 v;
  KVERN_EACH_REG v.r[e] = hn::BitCast(DF(), hn::ShiftLeft<16>(words.r[e]));
  return v;
}
HWY_INLINE Vec16 HighBf16(const Vec16u& words) {
  Vec16 v;
  KVERN_EACH_REG { v.r[e] = hn::BitCast(DF(), hn::And(words.r[e], hn::Set(DU(), 0xFFFF0000u))); }
  return v;
}
HWY_INLINE Vec16 LoadBf16x16(const uint16_t* p) {
  const hn::Rebind<uint16_t, DF> d16;
  Vec16 v;
  KVERN_EACH_REG {
    const VU wide = hn::PromoteTo(DU(), hn::LoadU(d16, p + e * kRegLanes));
    v.r[e] = hn::BitCast(DF(), hn::ShiftLeft<16>(wide));
  }
  return v;
}
HWY_INLINE Vec16 LoadF16x16(const uint16_t* p) {
  const hn::Rebind<hwy::float16_t, DF> d16;
  const hwy::float16_t* halves = reinterpret_cast<const hwy::float16_t*>(p);
  Vec16 v;
  KVERN_EACH_REG v.r[e] = hn::PromoteTo(DF(), hn::LoadU(d16, halves + e * kRegLanes));
  return v;
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// In each 128-bit block: lane i of out[j] = lane j of in[i].
HWY_INLINE void TransposeBlocks(const VU (&in)[4], VU (&out)[4]) {
  const DU du;
  const hn::Repartition<uint64_t, DU> du64;
  const auto low01 = hn::BitCast(du64, hn::InterleaveLower(du, in[0], in[1]));
  const auto low23 = hn::BitCast(du64, hn::InterleaveLower(du, in[2], in[3]));
  const auto high01 = hn::BitCast(du64, hn::InterleaveUpper(du, in[0], in[1]));
  const auto high23 = hn::BitCast(du64, hn::InterleaveUpper(du, in[2], in[3]));
  out[0] = hn::BitCast(du, hn::InterleaveLower(du64, low01, low23));
  out[1] = hn::BitCast(du, hn::InterleaveUpper(du64, low01, low23));
  out[2] = hn::BitCast(du, hn::InterleaveLower(du64, high01, high23));
  out[3] = hn::BitCast(du, hn::InterleaveUpper(du64, high01, high23));
}
#endif

// e^x within 2 units in the last place for x in [-87.3, 88.3]; exactly 0 below, e^88.3 above. x = n
// ln 2 + r with |r| <= ln 2 / 2; e^r by its Taylor series, whose first dropped term r^8 / 8! is
// below 2^-27.
HWY_INLINE VF ExpReg(VF x) {
  const DF d;
  const DI di;
  const auto underflows = hn::Lt(x, hn::Set(d, -87.3f));
  x = hn::Min(hn::Max(x, hn::Set(d, -87.3f)), hn::Set(d, 88.3f));
  const VF n = hn::Round(hn::Mul(x, hn::Set(d, 1.44269504088896341f)));
  // ln 2 = 0x1.62e4p-1 (exact times any n here) + the rest.
  VF r = hn::NegMulAdd(n, hn::Set(d, 0x1.62e4p-1f), x);
  r = hn::NegMulAdd(n, hn::Set(d, 1.42860682030941723e-6f), r);
  VF p = hn::Set(d, 1.0f / 5040);
  for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) {
    p = hn::MulAdd(p, r, hn::Set(d, c));
  }
  const auto exponent = hn::Add(hn::ConvertTo(di, n), hn::Set(di, 127));
  return hn::IfThenZeroElse(underflows, hn::Mul(p, hn::BitCast(d, hn::ShiftLeft<23>(exponent))));
}
HWY_INLINE Vec16 Exp16(Vec16 x) {
  KVERN_EACH_REG x.r[e] = ExpReg(x.r[e]);
  return x;
}

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
