// Questions about logits: queries of one kind are one launch, and all launches one round trip.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <tuple>

#include "cluster/base/check.h"
#include "worker/device/cuda/cuda_ops.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

static_assert(kMaxTopCandidates <= gpu::kMaxCandidates);

using Kind = LogitQuery::Kind;

constexpr size_t kAlignment = 16;  // of a launch's results

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What queries of one launch share.
std::tuple<Kind, int64_t> LaunchKey(const LogitQuery& query) {
  return {query.kind, query.kind == Kind::kTop ? query.k : 0};
}

}  // namespace

size_t CudaOps::ResultBytes(Tensor logits, const LogitQuery& query) const {
  switch (query.kind) {
    case Kind::kTop:
      return static_cast<size_t>(std::min(query.k, logits.cols)) * sizeof(gpu::ScoredColumn);
    case Kind::kLogSumExp:
      return static_cast<size_t>(gpu::SumParts(static_cast<int32_t>(logits.cols))) *
             sizeof(gpu::SumPart);
    case Kind::kGumbelMax:
      return sizeof(uint64_t);
  }
  return 0;
}

size_t CudaOps::Together(Tensor logits, std::span<const LogitQuery> queries,
                         std::span<const size_t> open) const {
  const LogitQuery& first = queries[open[0]];
  const size_t room =
      std::min((requests_->slot_bytes() / sizeof(gpu::SampleRow)) - requested_,
               (results_.size() - result_bytes_) / std::max<size_t>(1, ResultBytes(logits, first)));
  size_t count = 0;
  while (count < open.size() && count < room &&
         LaunchKey(queries[open[count]]) == LaunchKey(first)) {
    ++count;
  }
  return count;
}

void CudaOps::Note(Tensor logits, std::span<const LogitQuery> queries,
                   std::span<const size_t> members) {
  if (launched_.empty()) context_.Fail(requests_->Begin());
  auto* requests = reinterpret_cast<gpu::SampleRow*>(requests_->host()) + requested_;
  for (size_t i = 0; i < members.size(); ++i) {
    const LogitQuery& query = queries[members[i]];
    KVERN_CHECK(query.row >= 0 && query.row < logits.rows) << "row " << query.row;
    requests[i] = {static_cast<int32_t>(query.row), query.inverse_temperature, query.key};
  }
  launched_.push_back({members, requested_, result_bytes_});
  requested_ += members.size();
  result_bytes_ =
      std::min(results_.size(),
               RoundUp(result_bytes_ + members.size() * ResultBytes(logits, queries[members[0]])));
}

void CudaOps::Launch(Tensor logits, int64_t vocab_begin, const LogitQuery& first,
                     const Launched& launch) {
  gpu::LogitsArgs args;
  args.logits = logits.f32();
  args.stride = logits.stride;
  args.columns = static_cast<int32_t>(logits.cols);
  args.requests = reinterpret_cast<const gpu::SampleRow*>(requests_->device()) + launch.request;
  args.count = static_cast<int32_t>(launch.queries.size());
  void* out = static_cast<char*>(results_.data()) + launch.result;
  switch (first.kind) {
    case Kind::kTop:
      KVERN_CHECK_LE(first.k, kMaxTopCandidates);
      Check(gpu::LaunchTopCandidates(args, static_cast<int32_t>(std::min(first.k, logits.cols)),
                                     static_cast<gpu::ScoredColumn*>(out), context_.stream()),
            "top_candidates");
      break;
    case Kind::kLogSumExp:
      Check(gpu::LaunchLogSumExp(args, static_cast<gpu::SumPart*>(out), context_.stream()),
            "log_sum_exp");
      break;
    case Kind::kGumbelMax:
      Check(gpu::LaunchGumbelMax(args, static_cast<uint64_t>(vocab_begin),
                                 static_cast<uint64_t*>(out), context_.stream()),
            "gumbel_max");
      break;
  }
}

bool CudaOps::Receive() {
  context_.CopyAfterCompute();
  Check(cudaMemcpyAsync(received_.data(), results_.data(), result_bytes_, cudaMemcpyDeviceToHost,
                        context_.copy_stream()),
        "copying answers about logits");
  return context_.WaitForCopies().ok();
}

void CudaOps::Read(Tensor logits, const LogitQuery& query, const std::byte* at,
                   LogitAnswer& answer) const {
  const size_t bytes = ResultBytes(logits, query);
  if (query.kind == Kind::kTop) {
    const auto* found = reinterpret_cast<const gpu::ScoredColumn*>(at);
    for (size_t i = 0; i < bytes / sizeof(gpu::ScoredColumn); ++i) {
      answer.candidates.push_back({found[i].value, found[i].column});
    }
  } else if (query.kind == Kind::kLogSumExp) {
    const auto* parts = reinterpret_cast<const gpu::SumPart*>(at);
    const gpu::SumPart sum =
        gpu::FoldSums({parts, bytes / sizeof(gpu::SumPart)}, query.inverse_temperature);
    answer.sum = {sum.max, sum.sum};
  } else {
    uint64_t best = 0;
    std::memcpy(&best, at, sizeof(best));
    const gpu::ScoredColumn chosen = gpu::ChosenColumn(best);
    answer.candidates.push_back({chosen.value, chosen.column});
  }
}

void CudaOps::Answer(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
                     std::vector<LogitAnswer>& answers) {
  requests_->Send(0, requested_ * sizeof(gpu::SampleRow));
  requests_->Sent();
  for (const Launched& launch : launched_) {
    Launch(logits, vocab_begin, queries[launch.queries[0]], launch);
  }
  const bool arrived = Receive();
  for (const Launched& launch : launched_) {
    const std::byte* at = received_.data() + launch.result;
    for (const size_t index : launch.queries) {
      answers[index].candidates.clear();
      answers[index].sum = {};
      if (arrived) Read(logits, queries[index], at, answers[index]);
      at += ResultBytes(logits, queries[index]);
    }
  }
  launched_.clear();
  requested_ = 0;
  result_bytes_ = 0;
}

void CudaOps::AskLogits(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
                        std::vector<LogitAnswer>& answers) {
  KVERN_CHECK(logits.dtype == DType::kF32);
  context_.Enter();
  answers.resize(queries.size());
  order_.resize(queries.size());
  std::iota(order_.begin(), order_.end(), size_t{0});
  std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
    return LaunchKey(queries[a]) < LaunchKey(queries[b]);
  });
  for (auto open = std::span<const size_t>(order_); !open.empty();) {
    const size_t count = Together(logits, queries, open);
    if (count == 0) {  // the memory is full
      KVERN_CHECK(!launched_.empty()) << "one answer of " << results_.size() << " bytes";
      Answer(logits, vocab_begin, queries, answers);
      continue;
    }
    Note(logits, queries, open.first(count));
    open = open.subspan(count);
  }
  if (!launched_.empty()) Answer(logits, vocab_begin, queries, answers);
}

}  // namespace kvern::inline KVERN_GPU_BUILD
