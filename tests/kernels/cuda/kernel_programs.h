// Small runs of the kernels that share memory within a block. Each program runs one kernel and
// returns whether the result is right; inputs are such that it is known without a reference.
// Whoever plants bugs defines what language.cuh lets be replaced before this is included.
#pragma once

#include <algorithm>
#include <iterator>
#include <vector>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/gumbel.cuh"
#include "kernels/cuda/log_sum_exp.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/simt/grid.h"

namespace kvern::gpu {

// Keys are all alike, values are 1: so is the result, whatever the weights. missing_bytes: of the
// dynamic shared memory that the kernel needs.
template <int kWarps>
bool RunAttention(size_t missing_bytes) {
  constexpr int32_t kDim = 16;
  constexpr int32_t kTokens = kWarps == 1 ? 1 : 40;
  constexpr int32_t kKeys = 150;
  alignas(16) static Bf16 pages[10 * 2 * 16 * kDim];
  constexpr size_t kElements = static_cast<size_t>(kTokens) * kDim;
  alignas(16) static Bf16 q[kElements];
  alignas(16) static Bf16 out[kElements];
  std::fill(std::begin(pages), std::end(pages), ToBf16(1));
  std::fill(std::begin(q), std::end(q), ToBf16(1));
  const uint32_t table[10] = {3, 1, 9, 0, 2, 4, 8, 6, 7, 5};
  const AttentionItem item = {0, kTokens, kKeys - kTokens, 0, 0, 1, 0, 0};
  const AttentionCounts counts = {1, 1, 0, 0};
  AttentionArgs args;
  args.q = q;
  args.q_stride = args.out_stride = kDim;
  args.out = out;
  args.q_heads = 1;
  args.pages = {pages, KvType::kBf16, 1, 1, kDim};
  args.block_tables = table;
  args.narrow = args.wide = &item;
  args.counts = &counts;
  const PageStrides strides = StridesOf(args.pages, 0);
  simt::RunGrid(
      {dim3(1), dim3(32 * kWarps), kStages * StageBytes(kDim) - missing_bytes, "Attention"},
      [&] { AttentionKernel<Bf16, kDim, kWarps>({}, args, strides); });
  return std::all_of(std::begin(out), std::end(out), [](Bf16 x) { return ToFloat(x) == 1; });
}

inline bool RunRmsNorm() {
  constexpr int32_t kCols = 8 * kNormThreads;
  alignas(16) static float x[kCols];
  alignas(16) static float weight[kCols];
  alignas(16) static Bf16 out[kCols];
  std::fill(std::begin(x), std::end(x), 2.0f);
  std::fill(std::begin(weight), std::end(weight), 3.0f);
  RmsNormArgs args = {x, nullptr, weight, 0, 1, kCols, out};
  simt::RunGrid({dim3(1), dim3(kCols / 8), 0, "RmsNorm"}, [&] { RmsNormKernel<1>({}, args); });
  return std::all_of(std::begin(out), std::end(out), [](Bf16 o) { return ToFloat(o) == 3; });
}

inline bool RunLogSumExp() {
  std::vector<float> logits(1000, 0.5f);
  const SampleRow request;
  const LogitsArgs args = {logits.data(), 1000, 1000, &request, 1};
  SumPart part;
  simt::RunGrid({dim3(1), dim3(kSumThreads), 0, "LogSumExp"},
                [&] { LogSumExpKernel({}, args, &part); });
  return part.max == 0.5f && part.sum == 1000;
}

// One logit is beyond what noise can make of the others.
inline bool RunGumbelMax() {
  constexpr int32_t kColumns = 600;
  std::vector<float> logits(kColumns, 0.5f);
  logits[530] = 1000;
  const SampleRow request;
  const LogitsArgs args = {logits.data(), kColumns, kColumns, &request, 1};
  uint64_t best = 0;
  simt::RunGrid({dim3(2), dim3(kGumbelThreads), 0, "GumbelMax"},
                [&] { GumbelMaxKernel({}, args, 0, &best); });
  return ChosenColumn(best).column == 530;
}

// Half of the logits are alike, so that the search goes on to the columns.
inline bool RunTopCandidates() {
  constexpr int32_t kColumns = 1500;
  constexpr int32_t kCount = 40;
  std::vector<float> logits(kColumns, 1.0f);
  for (size_t i = 0; i < 10; ++i) logits[100 + 70 * i] = 5 + static_cast<float>(i);
  const SampleRow request;
  const LogitsArgs args = {logits.data(), kColumns, kColumns, &request, 1};
  std::vector<ScoredColumn> out(kCount);
  simt::RunGrid({dim3(1), dim3(kTopThreads), 0, "TopCandidates"},
                [&] { TopCandidatesKernel({}, args, kCount, out.data()); });
  for (uint32_t i = 0; i < kCount; ++i) {
    const uint32_t expected = i < 10 ? 100 + 70 * (9 - i) : i - 10;
    if (out[i].column != expected) return false;
  }
  return true;
}

}  // namespace kvern::gpu
