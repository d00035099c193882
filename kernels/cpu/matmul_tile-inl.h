// The register tile of the matrix product: kRows rows of x times kPanels panels of 16 outputs.
#if defined(KVERN_KERNELS_CPU_MATMUL_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVERN_KERNELS_CPU_MATMUL_TILE_INL_H_
#undef KVERN_KERNELS_CPU_MATMUL_TILE_INL_H_
#else
#define KVERN_KERNELS_CPU_MATMUL_TILE_INL_H_
#endif

#include "kernels/cpu/packed.h"
#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

#define KVERN_UNROLL _Pragma("GCC unroll 16")

inline constexpr size_t kGroupColumns = static_cast<size_t>(kGroup);

// A tile's operands. x: [k][kRows]; sums: [k / 32][kRows], kInt4 only.
struct TileArgs {
  const char* panel = nullptr;
  size_t panel_bytes = 0;
  size_t k = 0;
  const float* x = nullptr;
  const float* sums = nullptr;
};

template <size_t kRows, size_t kPanels>
struct Tile {
  Vec16 v[kRows][kPanels];
};

template <size_t kRows, size_t kPanels>
HWY_INLINE void Clear(Tile<kRows, kPanels>& acc) {
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) acc.v[r][p] = Zero16();
  }
}

// acc += x[column] (one value per row) times w (16 outputs per panel).
template <size_t kRows, size_t kPanels>
HWY_INLINE void Rank1(const float* x, const Vec16 (&w)[kPanels], Tile<kRows, kPanels>& acc) {
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    const Vec16 xr = Set16(x[r]);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) acc.v[r][p] = Fma16(xr, w[p], acc.v[r][p]);
  }
}

// Even elements of interleaved pairs are the low halves of the words, odd ones the high halves.
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

// Byte kByte of each word as a signed integer.
template <int kByte>
HWY_INLINE Vec16 SignedByte(const Vec16u& words) {
  Vec16 v;
  KVERN_EACH_REG {
    const auto high = hn::BitCast(DI(), hn::ShiftLeft<24 - 8 * kByte>(words.r[e]));
    v.r[e] = hn::ConvertTo(DF(), hn::ShiftRight<24>(high));
  }
  return v;
}

// Four bits of each word, from bit 4 * kNibble on, as an unsigned integer.
template <int kNibble>
HWY_INLINE Vec16 Nibble(const Vec16u& words) {
  Vec16 v;
  KVERN_EACH_REG {
    const auto code = hn::And(hn::ShiftRight<4 * kNibble>(words.r[e]), hn::Set(DU(), 15));
    v.r[e] = hn::ConvertTo(DF(), hn::BitCast(DI(), code));
  }
  return v;
}

template <size_t kPanels>
HWY_INLINE void LoadWords(const TileArgs& a, size_t offset, Vec16u (&words)[kPanels]) {
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
    words[p] = Load16u(a.panel + p * a.panel_bytes + offset);
  }
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductF32(const TileArgs& a, Tile<kRows, kPanels>& acc) {
  Clear(acc);
  for (size_t k = 0; k < a.k; ++k) {
    Vec16 w[kPanels];
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
      const char* column = a.panel + p * a.panel_bytes + k * 64;
      w[p] = Load16(reinterpret_cast<const float*>(column));
    }
    Rank1(a.x + k * kRows, w, acc);
  }
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductBf16(const TileArgs& a, Tile<kRows, kPanels>& acc) {
  Clear(acc);
  Vec16u words[kPanels];
  Vec16 w[kPanels];
  const size_t pairs = a.k / 2;
  for (size_t pair = 0; pair < pairs; ++pair) {
    LoadWords(a, pair * 64, words);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = LowBf16(words[p]);
    Rank1(a.x + 2 * pair * kRows, w, acc);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = HighBf16(words[p]);
    Rank1(a.x + (2 * pair + 1) * kRows, w, acc);
  }
  if (a.k % 2 != 0) {
    LoadWords(a, pairs * 64, words);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = LowBf16(words[p]);
    Rank1(a.x + 2 * pairs * kRows, w, acc);
  }
}

// total += scales (of each panel's 16 outputs) * acc.
template <size_t kRows, size_t kPanels>
HWY_INLINE void AddScaled(const TileArgs& a, size_t scale_offset, const Tile<kRows, kPanels>& acc,
                          Tile<kRows, kPanels>& total) {
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
    const char* scales = a.panel + p * a.panel_bytes + scale_offset;
    const Vec16 scale = LoadF16x16(reinterpret_cast<const uint16_t*>(scales));
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      total.v[r][p] = Fma16(scale, acc.v[r][p], total.v[r][p]);
    }
  }
}

template <int kByte, size_t kRows, size_t kPanels>
HWY_INLINE void BytesRank1(const float* x, const Vec16u (&words)[kPanels],
                           Tile<kRows, kPanels>& acc) {
  Vec16 w[kPanels];
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = SignedByte<kByte>(words[p]);
  Rank1(x + kByte * kRows, w, acc);
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductInt8(const TileArgs& a, Tile<kRows, kPanels>& total) {
  const size_t groups = a.k / kGroupColumns;
  Clear(total);
  for (size_t g = 0; g < groups; ++g) {
    Tile<kRows, kPanels> acc;
    Clear(acc);
    for (size_t quad = 0; quad < kGroupColumns / 4; ++quad) {
      Vec16u words[kPanels];
      LoadWords(a, g * 512 + quad * 64, words);
      const float* x = a.x + (g * kGroupColumns + quad * 4) * kRows;
      BytesRank1<0>(x, words, acc);
      BytesRank1<1>(x, words, acc);
      BytesRank1<2>(x, words, acc);
      BytesRank1<3>(x, words, acc);
    }
    AddScaled(a, groups * 512 + g * 32, acc, total);
  }
}

template <int kNibble, size_t kRows, size_t kPanels>
HWY_INLINE void NibblesRank1(const float* x, const Vec16u (&words)[kPanels],
                             Tile<kRows, kPanels>& acc) {
  Vec16 w[kPanels];
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = Nibble<kNibble>(words[p]);
  Rank1(x + kNibble * kRows, w, acc);
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductInt4(const TileArgs& a, Tile<kRows, kPanels>& total) {
  const size_t groups = a.k / kGroupColumns;
  Clear(total);
  for (size_t g = 0; g < groups; ++g) {
    const size_t base = g * 320;
    Tile<kRows, kPanels> acc;
    Clear(acc);
    for (size_t oct = 0; oct < kGroupColumns / 8; ++oct) {
      Vec16u words[kPanels];
      LoadWords(a, base + 64 + oct * 64, words);
      const float* x = a.x + (g * kGroupColumns + oct * 8) * kRows;
      NibblesRank1<0>(x, words, acc);
      NibblesRank1<1>(x, words, acc);
      NibblesRank1<2>(x, words, acc);
      NibblesRank1<3>(x, words, acc);
      NibblesRank1<4>(x, words, acc);
      NibblesRank1<5>(x, words, acc);
      NibblesRank1<6>(x, words, acc);
      NibblesRank1<7>(x, words, acc);
    }
    AddScaled(a, base, acc, total);
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) acc.v[r][p] = Set16(a.sums[g * kRows + r]);
    }
    AddScaled(a, base + 32, acc, total);
  }
}

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
