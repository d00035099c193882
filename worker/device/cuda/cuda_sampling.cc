// The operations on logits that the host waits for.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cluster/base/check.h"
#include "worker/device/cuda/cuda_ops.h"

namespace kvern::inline KVERN_GPU_BUILD {

gpu::LogitsArgs CudaOps::Request(Tensor logits, const gpu::SampleRow& row) {
  KVERN_CHECK(logits.dtype == DType::kF32 && row.row >= 0 && row.row < logits.rows);
  context_.Enter();
  // Whoever asked before has waited for the answer, so the staging memory is free.
  std::memcpy(staging_.data(), &row, sizeof(row));
  context_.Check(cudaMemcpyAsync(requests_.data(), staging_.data(), sizeof(row),
                                 cudaMemcpyHostToDevice, context_.stream()),
                 "copying a sampling request");
  gpu::LogitsArgs args;
  args.logits = logits.f32();
  args.stride = logits.stride;
  args.columns = static_cast<int32_t>(logits.cols);
  args.requests = static_cast<const gpu::SampleRow*>(requests_.data());
  args.count = 1;
  return args;
}

bool CudaOps::Receive(size_t bytes) {
  KVERN_CHECK_LE(bytes, received_.bytes());
  context_.Check(cudaMemcpyAsync(received_.data(), results_.data(), bytes, cudaMemcpyDeviceToHost,
                                 context_.stream()),
                 "copying what was sampled");
  return context_.Wait().ok();
}

// More candidates than the kernel gives: the host sorts.
void CudaOps::TopOfCopy(Tensor logits, int64_t row, int64_t k, std::vector<Candidate>& out) {
  std::vector<float> values(static_cast<size_t>(logits.cols));
  context_.Enter();
  context_.Check(
      cudaMemcpyAsync(values.data(), logits.f32() + row * logits.stride,
                      values.size() * sizeof(float), cudaMemcpyDeviceToHost, context_.stream()),
      "copying logits");
  out.clear();
  if (!context_.Wait().ok()) return;
  for (uint32_t i = 0; i < values.size(); ++i) {
    out.push_back({std::isnan(values[i]) ? -INFINITY : values[i], i});
  }
  const auto better = [](const Candidate& a, const Candidate& b) {
    return a.value != b.value ? a.value > b.value : a.index < b.index;
  };
  std::sort(out.begin(), out.end(), better);
  out.resize(std::min(out.size(), static_cast<size_t>(k)));
}

void CudaOps::TopCandidates(Tensor logits, int64_t row, int64_t k, std::vector<Candidate>& out) {
  out.clear();
  const int64_t count = std::clamp<int64_t>(k, 0, logits.cols);
  if (count == 0) return;
  if (count > gpu::kMaxCandidates) return TopOfCopy(logits, row, count, out);
  const gpu::LogitsArgs args = Request(logits, {static_cast<int32_t>(row), 1, 0});
  Check(
      gpu::LaunchTopCandidates(args, static_cast<int32_t>(count),
                               static_cast<gpu::ScoredColumn*>(results_.data()), context_.stream()),
      "top_candidates");
  const auto size = static_cast<size_t>(count);
  if (!Receive(size * sizeof(gpu::ScoredColumn))) return;
  const auto* found = reinterpret_cast<const gpu::ScoredColumn*>(received_.data());
  for (size_t i = 0; i < size; ++i) out.push_back({found[i].value, found[i].column});
}

LogSumExpPart CudaOps::LogSumExp(Tensor logits, int64_t row, float inverse_temperature) {
  const gpu::LogitsArgs args = Request(logits, {static_cast<int32_t>(row), inverse_temperature, 0});
  Check(gpu::LaunchLogSumExp(args, static_cast<gpu::SumPart*>(results_.data()), context_.stream()),
        "log_sum_exp");
  const auto parts = static_cast<size_t>(gpu::SumParts(args.columns));
  if (!Receive(parts * sizeof(gpu::SumPart))) return {};
  const auto* found = reinterpret_cast<const gpu::SumPart*>(received_.data());
  const gpu::SumPart sum = gpu::FoldSums({found, parts}, inverse_temperature);
  return {sum.max, sum.sum};
}

Candidate CudaOps::GumbelMax(Tensor logits, int64_t row, float inverse_temperature, uint64_t key,
                             int64_t vocab_begin) {
  const gpu::LogitsArgs args =
      Request(logits, {static_cast<int32_t>(row), inverse_temperature, key});
  Check(gpu::LaunchGumbelMax(args, static_cast<uint64_t>(vocab_begin),
                             static_cast<uint64_t*>(results_.data()), context_.stream()),
        "gumbel_max");
  if (!Receive(sizeof(uint64_t))) return {};
  uint64_t best = 0;
  std::memcpy(&best, received_.data(), sizeof(best));
  const gpu::ScoredColumn chosen = gpu::ChosenColumn(best);
  return {chosen.value, chosen.column};
}

}  // namespace kvern::inline KVERN_GPU_BUILD
