// The inner loops of attention: scores of a page of keys, and weighted sums of a page of values.
#if defined(KVERN_KERNELS_CPU_ATTENTION_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KVERN_KERNELS_CPU_ATTENTION_TILE_INL_H_
#undef KVERN_KERNELS_CPU_ATTENTION_TILE_INL_H_
#else
#define KVERN_KERNELS_CPU_ATTENTION_TILE_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention.h"
#include "kernels/cpu/vec16-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

// Rows that share a loaded vector of keys or values, and vectors of a row kept in registers.
inline constexpr int64_t kRowTile = 4;
inline constexpr size_t kValueVectors = kRegLanes == 16 ? 4 : 1;

struct SplitScratch {
  float* queries = nullptr;  // [rows, head_dim], scaled by 1 / sqrt(head_dim)
  float* scores = nullptr;   // [rows, kSplitTokens]
  float* keys = nullptr;     // one page, transposed: [head_dim, 16]
};

HWY_INLINE SplitScratch ScratchIn(float* memory, int64_t head_dim) {
  SplitScratch s;
  s.keys = memory;
  s.scores = s.keys + PaddedHeadDim(head_dim) * kPageTokens;
  s.queries = s.scores + kMaxAttentionRows * kSplitTokens;
  return s;
}

// Keys from first_key on that `row` sees: negative or zero if none.
HWY_INLINE int64_t VisibleKeys(const AttentionRows& a, int64_t row, int64_t first_key) {
  return std::min(kSplitTokens, a.start + row / a.group + 1 - first_key);
}

HWY_INLINE int64_t NumPages(int64_t keys) { return (keys + kPageTokens - 1) / kPageTokens; }

// What a split reads, in order: its pages of keys, then its pages of values. Pages are short and
// lie apart, so the hardware's prefetching gets nowhere: they are asked for some pages ahead, into
// the second-level cache (blocks of a cache lie at strides that share few lines of the first). Its
// functions must be inlined: GCC drops calls of functions that only prefetch.
template <class Element>
struct PageStream {
  HWY_INLINE PageStream(const AttentionRows& a, int64_t first_page, int64_t num_pages)
      : rows(a), first(first_page), pages(num_pages) {
    for (int64_t i = 0; i < kAhead && i < 2 * pages; ++i) Prefetch(i);
  }
  HWY_INLINE const Element* At(int64_t i) const {
    const int64_t page = first + (i < pages ? i : i - pages);
    return static_cast<const Element*>(rows.pages) +
           static_cast<int64_t>(rows.block_table[page]) * rows.page_stride +
           (i < pages ? 0 : rows.value_offset);
  }
  HWY_INLINE void PrefetchAfter(int64_t i) const {
    if (i + kAhead < 2 * pages) Prefetch(i + kAhead);
  }

  static constexpr int64_t kAhead = 4;
  static constexpr int kSecondLevel = 2;
  const AttentionRows& rows;
  const int64_t first;
  const int64_t pages;  // of keys, and as many of values

 private:
  HWY_INLINE void Prefetch(int64_t i) const {
    const char* page = reinterpret_cast<const char*>(At(i));
    const int64_t bytes = kPageTokens * rows.head_dim * static_cast<int64_t>(sizeof(Element));
    for (int64_t at = 0; at < bytes; at += 64) {
      __builtin_prefetch(page + at, 0, kSecondLevel);
    }
  }
};

HWY_INLINE Vec16 LoadElements(const float* p) { return Load16(p); }
HWY_INLINE Vec16 LoadElements(const uint16_t* p) { return LoadBf16x16(p); }
HWY_INLINE float ToFloat(float x) { return x; }
HWY_INLINE float ToFloat(uint16_t x) {
  const uint32_t bits = static_cast<uint32_t>(x) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

HWY_INLINE void CopyQueries(const AttentionRows& a, const SplitScratch& s) {
  const float scale = 1.0f / std::sqrt(static_cast<float>(a.head_dim));
  for (int64_t t = 0; t < a.tokens; ++t) {
    const float* in = a.q + t * a.q_stride;
    float* out = s.queries + t * a.group * a.head_dim;
    for (int64_t i = 0; i < a.group * a.head_dim; ++i) out[i] = in[i] * scale;
  }
}

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
// Four words of each of the 16 rows that start `stride` words apart, transposed: lane t of out[j]
// is word j of row t. Rows are first laid into 128-bit blocks, four of which are transposed at a
// time.
HWY_INLINE void Transpose16x4(const uint32_t* rows, size_t stride, Vec16u (&out)[4]) {
  const hn::Full128<uint32_t> d128;
  const DU du;
  for (size_t e = 0; e < kRegs; ++e) {
    VU in[4];
    KVERN_UNROLL for (size_t i = 0; i < 4; ++i) {
      const uint32_t* first = rows + (e * kRegLanes + i) * stride;
      const auto block = [&](size_t b) { return hn::LoadU(d128, first + 4 * b * stride); };
#if HWY_TARGET == HWY_AVX3
      const hn::Full256<uint32_t> d256;
      in[i] = hn::Combine(du, hn::Combine(d256, block(3), block(2)),
                          hn::Combine(d256, block(1), block(0)));
#else
      in[i] = hn::Combine(du, block(1), block(0));
#endif
    }
    VU columns[4];
    TransposeBlocks(in, columns);
    KVERN_UNROLL for (size_t j = 0; j < 4; ++j) out[j].r[e] = columns[j];
  }
}

// Writes columns [d, ...) of transposed keys from one transposed word per key.
HWY_INLINE void StoreKeys(const Vec16u& words, const float*, float* keys) {
  KVERN_EACH_REG hn::StoreU(hn::BitCast(DF(), words.r[e]), DF(), keys + e * kRegLanes);
}
HWY_INLINE void StoreKeys(const Vec16u& words, const uint16_t*, float* keys) {
  Store16(LowBf16(words), keys);
  Store16(HighBf16(words), keys + kPageTokens);
}

// Transposes what is whole steps of four words; returns how many dimensions that was.
template <class Element>
HWY_INLINE int64_t TransposeSteps(const Element* page, int64_t head_dim, float* keys) {
  constexpr int64_t kPerWord = 4 / sizeof(Element);
  const auto stride = static_cast<size_t>(head_dim / kPerWord);
  const auto* words = reinterpret_cast<const uint32_t*>(page);
  int64_t d = 0;
  for (; d + 4 * kPerWord <= head_dim; d += 4 * kPerWord) {
    Vec16u out[4];
    Transpose16x4(words + d / kPerWord, stride, out);
    for (int64_t j = 0; j < 4; ++j) {
      StoreKeys(out[j], page, keys + (d + j * kPerWord) * kPageTokens);
    }
  }
  return d;
}
#else
template <class Element>
HWY_INLINE int64_t TransposeSteps(const Element*, int64_t, float*) {
  return 0;
}
#endif

// keys [head_dim, 16] = the page's keys [16, head_dim] as float32, transposed.
template <class Element>
HWY_INLINE void TransposeKeys(const Element* page, int64_t head_dim, float* keys) {
  const int64_t done = TransposeSteps(page, head_dim, keys);
  for (int64_t token = 0; done < head_dim && token < kPageTokens; ++token) {
    const Element* key = page + token * head_dim;
    for (int64_t d = done; d < head_dim; ++d) keys[d * kPageTokens + token] = ToFloat(key[d]);
  }
}

template <size_t kRows>
HWY_INLINE void ScoreRows(const float* queries, int64_t head_dim, const float* keys,
                          float* scores) {
  Vec16 acc[kRows];
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) acc[r] = Zero16();
  for (int64_t d = 0; d < head_dim; ++d) {
    const Vec16 key = Load16(keys + d * kPageTokens);
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const float* query = queries + static_cast<int64_t>(r) * head_dim;
      acc[r] = Fma16(Set16(query[d]), key, acc[r]);
    }
  }
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    Store16(acc[r], scores + static_cast<int64_t>(r) * kSplitTokens);
  }
}

// Scores of all rows against the page in s.keys, the split's `page`-th.
HWY_INLINE void ScorePage(const AttentionRows& a, const SplitScratch& s, int64_t rows,
                          int64_t page) {
  for (int64_t row = 0; row < rows; row += kRowTile) {
    const float* queries = s.queries + row * a.head_dim;
    float* scores = s.scores + row * kSplitTokens + page * kPageTokens;
    switch (std::min(kRowTile, rows - row)) {
      case 1:
        ScoreRows<1>(queries, a.head_dim, s.keys, scores);
        break;
      case 2:
        ScoreRows<2>(queries, a.head_dim, s.keys, scores);
        break;
      case 3:
        ScoreRows<3>(queries, a.head_dim, s.keys, scores);
        break;
      default:
        ScoreRows<4>(queries, a.head_dim, s.keys, scores);
        break;
    }
  }
}

// out += weights[0..count) times values, for kRows rows that all see these `count` keys.
template <size_t kRows, size_t kVectors, class Element>
HWY_INLINE void AddValuesTile(const float* weights, int64_t count, const Element* values,
                              int64_t head_dim, float* out, int64_t out_stride) {
  Vec16 acc[kRows][kVectors];
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      acc[r][v] = Load16(out + static_cast<int64_t>(r) * out_stride + 16 * v);
    }
  }
  for (int64_t key = 0; key < count; ++key) {
    Vec16 value[kVectors];
    KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      value[v] = LoadElements(values + key * head_dim + 16 * v);
    }
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const Vec16 weight = Set16(weights[static_cast<int64_t>(r) * kSplitTokens + key]);
      KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
        acc[r][v] = Fma16(weight, value[v], acc[r][v]);
      }
    }
  }
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      Store16(acc[r][v], out + static_cast<int64_t>(r) * out_stride + 16 * v);
    }
  }
}

template <size_t kRows, class Element>
HWY_NOINLINE void AddValuesRows(const float* weights, int64_t count, const Element* values,
                                int64_t head_dim, float* out) {
  const int64_t padded = PaddedHeadDim(head_dim);
  constexpr int64_t kWidth = 16 * kValueVectors;
  int64_t d = 0;
  for (; d + kWidth <= padded; d += kWidth) {
    AddValuesTile<kRows, kValueVectors>(weights, count, values + d, head_dim, out + d, padded);
  }
  for (; d < padded; d += 16) {
    AddValuesTile<kRows, 1>(weights, count, values + d, head_dim, out + d, padded);
  }
}

// Adds the split's `page`-th page of values to all rows that see any of it.
template <class Element>
HWY_INLINE void AddValues(const AttentionRows& a, const SplitScratch& s, int64_t rows,
                          int64_t first_key, int64_t page, const Element* values,
                          const AttentionPartial& partial) {
  const int64_t padded = PaddedHeadDim(a.head_dim);
  const int64_t page_key = first_key + page * kPageTokens;
  const auto seen = [&](int64_t row) {
    return std::clamp<int64_t>(VisibleKeys(a, row, page_key), 0, kPageTokens);
  };
  for (int64_t row = 0; row < rows;) {
    const int64_t count = seen(row);
    int64_t same = 1;  // Rows from here on that see as many keys of the page.
    while (same < kRowTile && row + same < rows && seen(row + same) == count) ++same;
    const float* weights = s.scores + row * kSplitTokens + page * kPageTokens;
    float* out = partial.out + row * padded;
    row += same;
    if (count == 0) continue;
    switch (same) {
      case 1:
        AddValuesRows<1>(weights, count, values, a.head_dim, out);
        break;
      case 2:
        AddValuesRows<2>(weights, count, values, a.head_dim, out);
        break;
      case 3:
        AddValuesRows<3>(weights, count, values, a.head_dim, out);
        break;
      default:
        AddValuesRows<4>(weights, count, values, a.head_dim, out);
        break;
    }
  }
}

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
