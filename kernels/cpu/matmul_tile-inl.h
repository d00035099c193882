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

inline constexpr size_t kMaxPanels = 4;
inline constexpr size_t kGroupColumns = static_cast<size_t>(kGroup);

// A tile's operands. x: [k][kRows]; sums: [k / 32][kRows], quantised weights only.
struct TileArgs {
  const char* panels[kMaxPanels] = {};
  size_t panel_bytes = 0;
  size_t to_next = 0;  // bytes from the end of a panel to the one that the next tile reads there
  size_t k = 0;
  const float* x = nullptr;
  const float* sums = nullptr;
  float* kept = nullptr;  // see Kept
};

// Converting weights takes a register tile some 3 % of its time. With many tiles the first one of
// some panels keeps what it converts, float32 [k][kPanels][16], and the others read that.
enum class Kept { kNo, kWrite, kRead };

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

// The code of kBits bits at bit kShift of each word, times 2^kShift unless it is the topmost one
// (whose mask would include the sign). Masking without shifting saves an instruction per code;
// PackTile has multiplied the column of x by 2^-kShift instead, which is exact.
template <int kShift, int kBits>
HWY_INLINE Vec16 Code(const Vec16u& words) {
  Vec16 v;
  KVERN_EACH_REG {
    VU code;
    if constexpr (kShift + kBits == 32) {
      code = hn::ShiftRight<kShift>(words.r[e]);
    } else {
      code = hn::And(words.r[e], hn::Set(DU(), ((1u << kBits) - 1) << kShift));
    }
    v.r[e] = hn::ConvertTo(DF(), hn::BitCast(DI(), code));
  }
  return v;
}

// Asks for the lines that lie kAhead bytes further, in the panels of the next tile beyond the end
// of these: the hardware's own prefetching starts anew with every panel.
template <size_t kPanels>
HWY_INLINE void PrefetchAhead(const TileArgs& a, size_t offset) {
  // One row, on four panels, goes through them so fast that more would push out what is not used
  // yet.
  constexpr size_t kAhead = kPanels == kMaxPanels ? 512 : 2048;
  const size_t at = offset + kAhead + (offset + kAhead < a.panel_bytes ? 0 : a.to_next);
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) __builtin_prefetch(a.panels[p] + at);
}

template <size_t kPanels>
HWY_INLINE void LoadWords(const TileArgs& a, size_t offset, Vec16u (&words)[kPanels]) {
  PrefetchAhead<kPanels>(a, offset);
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) words[p] = Load16u(a.panels[p] + offset);
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductF32(const TileArgs& a, Tile<kRows, kPanels>& acc) {
  Clear(acc);
  for (size_t k = 0; k < a.k; ++k) {
    Vec16 w[kPanels];
    PrefetchAhead<kPanels>(a, k * 64);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
      w[p] = Load16(reinterpret_cast<const float*>(a.panels[p] + k * 64));
    }
    Rank1(a.x + k * kRows, w, acc);
  }
}

template <Kept kKept, size_t kPanels>
HWY_INLINE void Keep(const Vec16 (&w)[kPanels], size_t column, const TileArgs& a) {
  if constexpr (kKept == Kept::kWrite) {
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
      Store16(w[p], a.kept + (column * kPanels + p) * 16);
    }
  }
}

template <Kept kKept, size_t kRows, size_t kPanels>
HWY_INLINE void ProductBf16(const TileArgs& a, Tile<kRows, kPanels>& acc) {
  Clear(acc);
  Vec16u words[kPanels];
  Vec16 w[kPanels];
  const size_t pairs = a.k / 2;
  for (size_t pair = 0; pair < pairs; ++pair) {
    LoadWords(a, pair * 64, words);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = LowBf16(words[p]);
    Keep<kKept>(w, 2 * pair, a);
    Rank1(a.x + 2 * pair * kRows, w, acc);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = HighBf16(words[p]);
    Keep<kKept>(w, 2 * pair + 1, a);
    Rank1(a.x + (2 * pair + 1) * kRows, w, acc);
  }
  if (a.k % 2 != 0) {
    LoadWords(a, pairs * 64, words);
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = LowBf16(words[p]);
    Keep<kKept>(w, 2 * pairs, a);
    Rank1(a.x + 2 * pairs * kRows, w, acc);
  }
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductKept(const TileArgs& a, Tile<kRows, kPanels>& acc) {
  Clear(acc);
  const float* kept = a.kept;
  const float* x = a.x;
  for (size_t k = 0; k < a.k; ++k, kept += 16 * kPanels, x += kRows) {
    Vec16 w[kPanels];
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = Load16(kept + 16 * p);
    Rank1(x, w, acc);
  }
}

HWY_INLINE Vec16 LoadScales(const TileArgs& a, size_t panel, size_t offset) {
  return LoadF16x16(reinterpret_cast<const uint16_t*>(a.panels[panel] + offset));
}

// acc += x[0] times the codes at bit kShift of each word.
template <int kShift, int kBits, size_t kRows, size_t kPanels>
HWY_INLINE void CodeRank1(const float* x, const Vec16u (&words)[kPanels],
                          Tile<kRows, kPanels>& acc) {
  Vec16 w[kPanels];
  KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) w[p] = Code<kShift, kBits>(words[p]);
  Rank1(x, w, acc);
}

template <size_t kRows, size_t kPanels>
HWY_INLINE void ProductInt8(const TileArgs& a, Tile<kRows, kPanels>& total) {
  const size_t groups = a.k / kGroupColumns;
  Clear(total);
  for (size_t g = 0; g < groups; ++g) {
    // The codes are q + 128: the sum starts at -128 times the sum of x.
    Tile<kRows, kPanels> acc;
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const Vec16 start = Set16(-128 * a.sums[g * kRows + r]);
      KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) acc.v[r][p] = start;
    }
    for (size_t quad = 0; quad < kGroupColumns / 4; ++quad) {
      Vec16u words[kPanels];
      LoadWords(a, g * 512 + quad * 64, words);
      const float* x = a.x + (g * kGroupColumns + quad * 4) * kRows;
      CodeRank1<0, 8>(x, words, acc);
      CodeRank1<8, 8>(x + kRows, words, acc);
      CodeRank1<16, 8>(x + 2 * kRows, words, acc);
      CodeRank1<24, 8>(x + 3 * kRows, words, acc);
    }
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
      const Vec16 scale = LoadScales(a, p, groups * 512 + g * 32);
      KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
        total.v[r][p] = Fma16(scale, acc.v[r][p], total.v[r][p]);
      }
    }
  }
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
      CodeRank1<0, 4>(x, words, acc);
      CodeRank1<4, 4>(x + kRows, words, acc);
      CodeRank1<8, 4>(x + 2 * kRows, words, acc);
      CodeRank1<12, 4>(x + 3 * kRows, words, acc);
      CodeRank1<16, 4>(x + 4 * kRows, words, acc);
      CodeRank1<20, 4>(x + 5 * kRows, words, acc);
      CodeRank1<24, 4>(x + 6 * kRows, words, acc);
      CodeRank1<28, 4>(x + 7 * kRows, words, acc);
    }
    KVERN_UNROLL for (size_t p = 0; p < kPanels; ++p) {
      const Vec16 scale = LoadScales(a, p, base);
      const Vec16 min = LoadScales(a, p, base + 32);
      KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const Vec16 scaled = Fma16(scale, acc.v[r][p], total.v[r][p]);
        total.v[r][p] = Fma16(min, Set16(a.sums[g * kRows + r]), scaled);
      }
    }
  }
}

// What PackTile multiplies column c of x by, see Code.
HWY_INLINE float ColumnFactor(Packing packing, int64_t c) {
  constexpr float kInt8[] = {1, 0x1p-8f, 0x1p-16f, 1};
  constexpr float kInt4[] = {1, 0x1p-4f, 0x1p-8f, 0x1p-12f, 0x1p-16f, 0x1p-20f, 0x1p-24f, 1};
  if (packing == Packing::kInt8) return kInt8[c % 4];
  return packing == Packing::kInt4 ? kInt4[c % 8] : 1;
}

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
