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

// Register tiles. Scores: rows x pages of 16 keys; values: rows x vectors of 16 dimensions. Of what
// they leave over, four rows are a tile too, and then what remains.
#if HWY_TARGET == HWY_AVX3
inline constexpr size_t kScoreRows = 12;
inline constexpr size_t kValueRows = 6;
inline constexpr size_t kValueVectors = 4;
#else
inline constexpr size_t kScoreRows = HWY_TARGET == HWY_AVX2 ? 6 : 4;
inline constexpr size_t kValueRows = kScoreRows;
inline constexpr size_t kValueVectors = 1;
#endif
inline constexpr size_t kScorePages = kRegLanes == 16 ? 2 : 1;

// Rows of the tile to use when `left` rows are left.
template <size_t kLargest>
HWY_INLINE int64_t RowsOfTile(int64_t left) {
  constexpr auto kMost = static_cast<int64_t>(kLargest);
  return left >= kMost ? kMost : std::min<int64_t>(left, 4);
}

struct SplitScratch {
  float* queries = nullptr;  // [rows, head_dim], scaled by 1 / sqrt(head_dim)
  float* scores = nullptr;   // [rows, kSplitTokens]
  float* keys = nullptr;     // some pages, transposed: [head_dim, pages, 16]
};

HWY_INLINE SplitScratch ScratchIn(float* memory, int64_t head_dim) {
  SplitScratch s;
  s.keys = memory;
  s.scores = s.keys + PaddedHeadDim(head_dim) * kPageTokens * kMaxScorePages;
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

// Writes columns [d, ...) of transposed keys, `stride` apart, from one transposed word per key.
HWY_INLINE void StoreKeys(const Vec16u& words, const float*, float* keys, int64_t) {
  KVERN_EACH_REG hn::StoreU(hn::BitCast(DF(), words.r[e]), DF(), keys + e * kRegLanes);
}
HWY_INLINE void StoreKeys(const Vec16u& words, const uint16_t*, float* keys, int64_t stride) {
  Store16(LowBf16(words), keys);
  Store16(HighBf16(words), keys + stride);
}

// Transposes what is whole steps of four words; returns how many dimensions that was.
template <class Element>
HWY_INLINE int64_t TransposeSteps(const Element* page, int64_t head_dim, float* keys,
                                  int64_t keys_stride) {
  constexpr int64_t kPerWord = 4 / sizeof(Element);
  const auto stride = static_cast<size_t>(head_dim / kPerWord);
  const auto* words = reinterpret_cast<const uint32_t*>(page);
  int64_t d = 0;
  for (; d + 4 * kPerWord <= head_dim; d += 4 * kPerWord) {
    Vec16u out[4];
    Transpose16x4(words + d / kPerWord, stride, out);
    for (int64_t j = 0; j < 4; ++j) {
      StoreKeys(out[j], page, keys + (d + j * kPerWord) * keys_stride, keys_stride);
    }
  }
  return d;
}
#else
template <class Element>
HWY_INLINE int64_t TransposeSteps(const Element*, int64_t, float*, int64_t) {
  return 0;
}
#endif

// keys [head_dim, 16], rows `stride` apart, = the page's keys [16, head_dim] as float32,
// transposed.
template <class Element>
HWY_INLINE void TransposeKeys(const Element* page, int64_t head_dim, float* keys, int64_t stride) {
  const int64_t done = TransposeSteps(page, head_dim, keys, stride);
  for (int64_t token = 0; done < head_dim && token < kPageTokens; ++token) {
    const Element* key = page + token * head_dim;
    for (int64_t d = done; d < head_dim; ++d) keys[d * stride + token] = ToFloat(key[d]);
  }
}

template <size_t kRows, size_t kPages>
HWY_NOINLINE void ScoreRows(const float* queries, int64_t head_dim, const float* keys,
                            float* scores) {
  Vec16 acc[kRows][kPages];
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t p = 0; p < kPages; ++p) acc[r][p] = Zero16();
  }
  for (int64_t d = 0; d < head_dim; ++d, keys += 16 * kPages) {
    Vec16 key[kPages];
    KVERN_UNROLL for (size_t p = 0; p < kPages; ++p) key[p] = Load16(keys + 16 * p);
    KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
      const Vec16 query = Set16(queries[static_cast<int64_t>(r) * head_dim + d]);
      KVERN_UNROLL for (size_t p = 0; p < kPages; ++p) {
        acc[r][p] = Fma16(query, key[p], acc[r][p]);
      }
    }
  }
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t p = 0; p < kPages; ++p) {
      Store16(acc[r][p], scores + static_cast<int64_t>(r) * kSplitTokens + 16 * p);
    }
  }
}

// Scores of the rows that see any of the split's pages [page, page + kPages), which s.keys holds.
template <size_t kPages>
HWY_INLINE void ScorePages(const AttentionRows& a, const SplitScratch& s, int64_t first_key,
                           int64_t page) {
  const int64_t rows = a.tokens * a.group;
  const int64_t unseen = (first_key + page * kPageTokens - a.start) * a.group;
  for (int64_t row = std::max<int64_t>(unseen, 0); row < rows;) {
    const float* queries = s.queries + row * a.head_dim;
    float* scores = s.scores + row * kSplitTokens + page * kPageTokens;
    const int64_t tile = RowsOfTile<kScoreRows>(rows - row);
    row += tile;
    switch (tile) {
      case 1:
        ScoreRows<1, kPages>(queries, a.head_dim, s.keys, scores);
        break;
      case 2:
        ScoreRows<2, kPages>(queries, a.head_dim, s.keys, scores);
        break;
      case 3:
        ScoreRows<3, kPages>(queries, a.head_dim, s.keys, scores);
        break;
      case 4:
        ScoreRows<4, kPages>(queries, a.head_dim, s.keys, scores);
        break;
      default:
        ScoreRows<kScoreRows, kPages>(queries, a.head_dim, s.keys, scores);
        break;
    }
  }
}

// Scores of the split's pages [page, page + kPages).
template <size_t kPages, class Element>
HWY_INLINE void TransposeAndScore(const AttentionRows& a, const SplitScratch& s,
                                  const PageStream<Element>& stream, int64_t page) {
  constexpr auto kStride = static_cast<int64_t>(kPages) * kPageTokens;
  for (int64_t p = 0; p < static_cast<int64_t>(kPages); ++p) {
    stream.PrefetchAfter(page + p);
    TransposeKeys(stream.At(page + p), a.head_dim, s.keys + p * kPageTokens, kStride);
  }
  ScorePages<kPages>(a, s, stream.first * kPageTokens, page);
}

// Keys [begin, end) of a split.
struct KeyRange {
  int64_t begin = 0;
  int64_t end = 0;
};

// out (+)= weights times values, dimensions [d, d + 16 kVectors), for kRows rows that all see these
// keys. Starts anew with the split's first key.
template <size_t kRows, size_t kVectors, class Element>
HWY_INLINE void AddValuesTile(const PageStream<Element>& stream, KeyRange keys, bool prefetch,
                              const float* weights, int64_t d, float* out, int64_t out_stride) {
  Vec16 acc[kRows][kVectors];
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      const float* old = out + static_cast<int64_t>(r) * out_stride + 16 * v;
      acc[r][v] = keys.begin == 0 ? Zero16() : Load16(old);
    }
  }
  const int64_t head_dim = stream.rows.head_dim;
  for (int64_t key = keys.begin; key < keys.end;) {
    const int64_t page = stream.pages + key / kPageTokens;
    const Element* values = stream.At(page) + key % kPageTokens * head_dim + d;
    const int64_t page_end = std::min(keys.end, (key / kPageTokens + 1) * kPageTokens);
    if (prefetch) stream.PrefetchAfter(page);
    for (; key < page_end; ++key, values += head_dim) {
      Vec16 value[kVectors];
      KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) value[v] = LoadElements(values + 16 * v);
      KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
        const Vec16 weight = Set16(weights[static_cast<int64_t>(r) * kSplitTokens + key]);
        KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
          acc[r][v] = Fma16(weight, value[v], acc[r][v]);
        }
      }
    }
  }
  // Zeros become positive, as merging makes them: whether a split is alone must not show.
  KVERN_UNROLL for (size_t r = 0; r < kRows; ++r) {
    KVERN_UNROLL for (size_t v = 0; v < kVectors; ++v) {
      Store16(Add16(acc[r][v], Zero16()), out + static_cast<int64_t>(r) * out_stride + 16 * v);
    }
  }
}

template <size_t kRows, class Element>
HWY_NOINLINE void AddValuesRows(const PageStream<Element>& stream, KeyRange keys, bool prefetch,
                                const float* weights, float* out) {
  const int64_t padded = PaddedHeadDim(stream.rows.head_dim);
  constexpr int64_t kWidth = 16 * kValueVectors;
  int64_t d = 0;
  for (; d + kWidth <= padded; d += kWidth, prefetch = false) {
    AddValuesTile<kRows, kValueVectors>(stream, keys, prefetch, weights, d, out + d, padded);
  }
  for (; d < padded; d += 16, prefetch = false) {
    AddValuesTile<kRows, 1>(stream, keys, prefetch, weights, d, out + d, padded);
  }
}

// Adds values of keys that rows [row, row + count) all see.
template <class Element>
HWY_INLINE void AddValues(const PageStream<Element>& stream, const SplitScratch& s, int64_t row,
                          int64_t count, KeyRange keys, const AttentionPartial& partial) {
  const float* weights = s.scores + row * kSplitTokens;
  float* out = partial.out + row * PaddedHeadDim(stream.rows.head_dim);
  const bool prefetch = row == 0 && keys.begin == 0;
  switch (count) {
    case 1:
      return AddValuesRows<1>(stream, keys, prefetch, weights, out);
    case 2:
      return AddValuesRows<2>(stream, keys, prefetch, weights, out);
    case 3:
      return AddValuesRows<3>(stream, keys, prefetch, weights, out);
    case 4:
      return AddValuesRows<4>(stream, keys, prefetch, weights, out);
    case 5:
      return AddValuesRows<5>(stream, keys, prefetch, weights, out);
    default:
      return AddValuesRows<kValueRows>(stream, keys, prefetch, weights, out);
  }
}

// partial.out = weighted sums of the values that each row sees: for a tile of rows the keys that
// its first one sees, then for the rows of each later token the few more that these see.
template <class Element>
HWY_INLINE void SumValues(const PageStream<Element>& stream, const SplitScratch& s,
                          const AttentionPartial& partial) {
  const AttentionRows& a = stream.rows;
  const int64_t rows = a.tokens * a.group;
  const auto seen = [&](int64_t row) {
    return std::max<int64_t>(VisibleKeys(a, row, stream.first * kPageTokens), 0);
  };
  for (int64_t row = 0; row < rows;) {
    const int64_t end = row + RowsOfTile<kValueRows>(rows - row);
    const int64_t common = seen(row);
    AddValues(stream, s, row, end - row, {0, common}, partial);
    while (row < end) {
      const int64_t same = std::min(end, (row / a.group + 1) * a.group);
      if (seen(row) > common) {
        AddValues(stream, s, row, same - row, {common, seen(row)}, partial);
      }
      row = same;
    }
  }
}

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
