#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu/targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per target.
#include "hwy/highway.h"
#include "kernels/cpu/attention_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvern::cpu::HWY_NAMESPACE {

// Softmax of the scores of each row, in place: weights of the keys the row sees, zero for others.
void Weights(const AttentionRows& a, const SplitScratch& s, int64_t first_key, int64_t rows,
             const AttentionPartial& partial) {
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t visible = VisibleKeys(a, row, first_key);
    float* scores = s.scores + row * kSplitTokens;
    if (visible <= 0) {
      partial.max[row] = -std::numeric_limits<float>::infinity();
      partial.sum[row] = 0;
      continue;
    }
    const int64_t padded = PaddedHeadDim(visible);
    for (int64_t i = visible; i < padded; ++i) {
      scores[i] = -std::numeric_limits<float>::infinity();
    }
    Vec16 best = Load16(scores);
    for (int64_t i = 16; i < padded; i += 16) best = Max16(best, Load16(scores + i));
    const float max = MaxLane16(best);
    const Vec16 top = Set16(max);
    Vec16 sum = Zero16();
    for (int64_t i = 0; i < padded; i += 16) {
      const Vec16 weight = Exp16(Sub16(Load16(scores + i), top));
      sum = Add16(sum, weight);
      Store16(weight, scores + i);
    }
    partial.max[row] = max;
    partial.sum[row] = Sum16(sum);
  }
}

template <class Element>
void SplitOf(const AttentionRows& a, int64_t split, const SplitScratch& s,
             const AttentionPartial& partial) {
  const int64_t rows = a.tokens * a.group;
  const int64_t first_key = split * kSplitTokens;
  const int64_t keys = std::min(kSplitTokens, a.start + a.tokens - first_key);
  const PageStream<Element> stream(a, first_key / kPageTokens, NumPages(keys));
  CopyQueries(a, s);
  constexpr auto kPages = static_cast<int64_t>(kScorePages);
  int64_t page = 0;
  for (; page + kPages <= stream.pages; page += kPages) {
    TransposeAndScore<kScorePages>(a, s, stream, page);
  }
  for (; page < stream.pages; ++page) TransposeAndScore<1>(a, s, stream, page);
  Weights(a, s, first_key, rows, partial);
  SumValues(stream, s, partial);
}

void Split(const AttentionRows& a, int64_t split, float* scratch, const AttentionPartial& partial) {
  const SplitScratch s = ScratchIn(scratch, a.head_dim);
  if (a.bf16) {
    SplitOf<uint16_t>(a, split, s, partial);
  } else {
    SplitOf<float>(a, split, s, partial);
  }
}

void Merge(int64_t rows, int64_t head_dim, const AttentionPartial& next,
           const AttentionPartial& total) {
  const int64_t padded = PaddedHeadDim(head_dim);
  for (int64_t row = 0; row < rows; ++row) {
    if (std::isinf(next.max[row]) && next.max[row] < 0) continue;
    float factors[16] = {};
    const float max = std::max(total.max[row], next.max[row]);
    factors[0] = total.max[row] - max;
    factors[1] = next.max[row] - max;
    Store16(Exp16(Load16(factors)), factors);
    total.max[row] = max;
    total.sum[row] = total.sum[row] * factors[0] + next.sum[row] * factors[1];
    const Vec16 keep = Set16(factors[0]);
    const Vec16 add = Set16(factors[1]);
    for (int64_t i = row * padded; i < (row + 1) * padded; i += 16) {
      const Vec16 old = Mul16(Load16(total.out + i), keep);
      Store16(Fma16(Load16(next.out + i), add, old), total.out + i);
    }
  }
}

void Finish(const AttentionRows& a, const AttentionPartial& total) {
  const int64_t padded = PaddedHeadDim(a.head_dim);
  for (int64_t row = 0; row < a.tokens * a.group; ++row) {
    const Vec16 factor = Set16(1.0f / total.sum[row]);
    const float* in = total.out + row * padded;
    float* out = a.out + row / a.group * a.out_stride + row % a.group * a.head_dim;
    int64_t i = 0;
    for (; i + 16 <= a.head_dim; i += 16) Store16(Mul16(Load16(in + i), factor), out + i);
    if (i < a.head_dim) {
      StoreFirst16(Mul16(Load16(in + i), factor), out + i, static_cast<size_t>(a.head_dim - i));
    }
  }
}

constexpr AttentionKernels kAttention{&Split, &Merge, &Finish};

}  // namespace kvern::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvern::cpu {

const AttentionKernels& AttentionFor(Isa isa) { return *KVERN_TABLE_FOR(kAttention, isa); }

AttentionPartial PartialIn(float* memory, int64_t rows) {
  const int64_t padded = PaddedHeadDim(rows);
  return {memory, memory + padded, memory + 2 * padded};
}

size_t AttentionScratchFloats(int64_t head_dim) {
  const int64_t padded = PaddedHeadDim(head_dim);
  return static_cast<size_t>(kMaxAttentionRows * (padded + kSplitTokens) +
                             padded * kPageTokens * kMaxScorePages);
}

}  // namespace kvern::cpu
#endif  // HWY_ONCE
