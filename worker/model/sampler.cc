#include "worker/model/sampler.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "cluster/base/check.h"

namespace kvern {
namespace {

// Candidates of a shard for a row with filters. A nucleus that needs more is gathered as a whole
// row.
constexpr size_t kMaxCandidates = kMaxTopCandidates;
// Beyond top_k, so that a few ties with the k-th are seen.
constexpr size_t kTieRoom = 32;
// Whole rows per collective: 16 rows of 128 Ki tokens are 16 MiB.
constexpr size_t kWholeRowsAtOnce = 16;

// NaN and infinities out of a broken model must not break the order of tokens.
float Ordered(float logit) { return logit > kMaskedLogit ? logit : kMaskedLogit; }

float InverseTemperature(const SamplingParams& params) { return 1.0f / params.temperature; }

// log(sum over ranks of part.sum * e^(part.max - max)) + max, ranks ascending.
double MergeLogSumExp(std::span<const LogSumExpPart> parts, double inverse_temperature,
                      double* mass) {
  float max = parts[0].max;
  for (const LogSumExpPart& part : parts) max = std::max(max, part.max);
  *mass = 0;
  for (const LogSumExpPart& part : parts) {
    double below = (static_cast<double>(part.max) - static_cast<double>(max)) * inverse_temperature;
    *mass += part.sum * std::exp(below);
  }
  return static_cast<double>(max) * inverse_temperature + std::log(*mass);
}

}  // namespace

struct Sampler::RowHeader {
  uint32_t columns = 0;     // of this rank's shard
  uint32_t candidates = 0;  // that follow
  uint32_t top = 0;         // that follow them
  uint32_t reserved = 0;
  LogSumExpPart edited;  // at the row's temperature; for rows with filters
  LogSumExpPart raw;     // at temperature 1; for rows with logprobs
};

Sampler::Sampler(Device* device, Communicator* comm, ShardRange vocab, uint32_t vocab_size)
    : device_(*device),
      ops_(device->ops()),
      comm_(*comm),
      vocab_(vocab),
      vocab_size_(vocab_size),
      editor_(vocab) {
  KVERN_CHECK(vocab.begin < vocab.end && vocab.end <= vocab_size);
}

absl::StatusOr<std::vector<SampledToken>> Sampler::Sample(Tensor logits,
                                                          std::span<const SampleRow> rows) {
  KVERN_CHECK(logits.rows == static_cast<int64_t>(rows.size()) &&
              logits.cols == static_cast<int64_t>(vocab_.size()));
  std::vector<SampledToken> samples;
  if (rows.empty()) return samples;
  std::vector<RowPlan> plans = PlanRows(rows);
  if (edits_.size() < rows.size()) edits_.resize(rows.size());
  KVERN_RETURN_IF_ERROR(Collect(logits, rows, plans));
  gathered_.resize(mine_.size() * static_cast<size_t>(comm_.world()));
  KVERN_RETURN_IF_ERROR(comm_.AllGather(mine_.data(), mine_.size(), gathered_.data()));

  std::vector<std::optional<TokenLogit>> chosen;
  for (size_t row = 0; row < rows.size(); ++row) chosen.push_back(Choose(plans[row], rows[row]));
  KVERN_RETURN_IF_ERROR(ChooseFromWholeRows(logits, rows, plans[0], chosen));
  for (size_t row = 0; row < rows.size(); ++row) {
    SampledToken sample{rows[row].slot, chosen[row]->token_id, {}};
    if (rows[row].params->logprobs) sample.logprob = Logprob(plans[row], *chosen[row]);
    samples.push_back(std::move(sample));
  }
  return samples;
}

std::vector<Sampler::RowPlan> Sampler::PlanRows(std::span<const SampleRow> rows) {
  std::vector<RowPlan> plans;
  size_t bytes = 0;
  for (const SampleRow& row : rows) {
    const ResolvedSampling& params = *row.params;
    RowPlan plan;
    plan.offset = bytes;
    plan.candidates = 1;
    if (!IsGreedy(params) && HasFilters(params, vocab_size_)) {
      size_t wanted = params.top_k > 0 ? params.top_k + kTieRoom : kMaxCandidates;
      plan.candidates = std::min({wanted, kMaxCandidates, size_t{vocab_size_}});
    }
    plan.top = std::min<size_t>(params.logprobs.value_or(0), vocab_size_);
    bytes +=
        sizeof(RowHeader) + plan.candidates * sizeof(TokenLogit) + plan.top * sizeof(Candidate);
    bytes = (bytes + alignof(RowHeader) - 1) / alignof(RowHeader) * alignof(RowHeader);
    plans.push_back(plan);
  }
  mine_.assign(bytes, std::byte{0});
  return plans;
}

absl::StatusOr<float*> Sampler::HostRow(Tensor logits, size_t row) {
  float* values = logits.f32() + static_cast<int64_t>(row) * logits.stride;
  if (device_.host_memory()) return values;
  row_copy_.resize(vocab_.size());
  KVERN_RETURN_IF_ERROR(
      device_.CopyToHost(row_copy_.data(), values, row_copy_.size() * sizeof(float)));
  return row_copy_.data();
}

absl::Status Sampler::Edit(Tensor logits, size_t row, const SampleRow& what) {
  EditInput input{what.params, what.position, what.tokens, what.prompt_tokens, what.eos_ids};
  edits_[row].clear();
  if (!HasEdits(input)) return absl::OkStatus();
  KVERN_ASSIGN_OR_RETURN(float* values, HostRow(logits, row));
  editor_.Apply(input, values, edits_[row]);
  if (device_.host_memory()) return absl::OkStatus();
  return device_.CopyToDevice(logits.f32() + static_cast<int64_t>(row) * logits.stride, values,
                              vocab_.size() * sizeof(float));
}

void Sampler::Ask(const LogitQuery& query, LogitAnswer& place) {
  queries_.push_back(query);
  places_.push_back(&place);
}

void Sampler::FinishRound(Tensor logits) {
  if (queries_.empty()) return;
  ops_.AskLogits(logits, vocab_.begin, queries_, round_);
  for (size_t i = 0; i < places_.size(); ++i) std::swap(*places_[i], round_[i]);
  queries_.clear();
  places_.clear();
}

void Sampler::AskRaw(Tensor logits, std::span<const SampleRow> rows,
                     std::span<const RowPlan> plans) {
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].params->logprobs) continue;
    auto index = static_cast<int64_t>(row);
    Ask({.kind = LogitQuery::Kind::kLogSumExp, .row = index}, answers_[row].raw_sum);
    answers_[row].raw_top.candidates.clear();
    if (plans[row].top == 0) continue;
    Ask({.row = index, .k = static_cast<int64_t>(plans[row].top)}, answers_[row].raw_top);
  }
  FinishRound(logits);
}

void Sampler::AskEdited(Tensor logits, std::span<const SampleRow> rows,
                        std::span<const RowPlan> plans) {
  for (size_t row = 0; row < rows.size(); ++row) {
    const ResolvedSampling& params = *rows[row].params;
    LogitQuery query{.row = static_cast<int64_t>(row)};
    bool filters = !IsGreedy(params) && HasFilters(params, vocab_size_);
    if (IsGreedy(params) || filters) {
      query.k = static_cast<int64_t>(plans[row].candidates);
    } else {
      query.kind = LogitQuery::Kind::kGumbelMax;
      query.inverse_temperature = InverseTemperature(params);
      query.key = DrawKey(params.seed, rows[row].choice, rows[row].position);
    }
    Ask(query, answers_[row].best);
    if (!filters) continue;
    query.kind = LogitQuery::Kind::kLogSumExp;
    query.inverse_temperature = InverseTemperature(params);
    Ask(query, answers_[row].edited_sum);
  }
  FinishRound(logits);
}

absl::Status Sampler::Collect(Tensor logits, std::span<const SampleRow> rows,
                              std::span<const RowPlan> plans) {
  answers_.resize(std::max(answers_.size(), rows.size()));
  AskRaw(logits, rows, plans);
  for (size_t row = 0; row < rows.size(); ++row) {
    KVERN_RETURN_IF_ERROR(Edit(logits, row, rows[row]));
  }
  AskEdited(logits, rows, plans);
  KVERN_RETURN_IF_ERROR(device_.Synchronize());
  for (size_t row = 0; row < rows.size(); ++row) {
    KVERN_RETURN_IF_ERROR(Write(logits, row, rows[row], plans[row]));
  }
  return absl::OkStatus();
}

// The row's part of mine_.
absl::Status Sampler::Write(Tensor logits, size_t row, const SampleRow& what, const RowPlan& plan) {
  const ResolvedSampling& params = *what.params;
  const RowAnswers& answers = answers_[row];
  bool logprobs = params.logprobs.has_value();
  bool filters = !IsGreedy(params) && HasFilters(params, vocab_size_);
  std::byte* out = mine_.data() + plan.offset;
  RowHeader header;
  header.columns = vocab_.size();
  header.candidates = static_cast<uint32_t>(answers.best.candidates.size());
  if (logprobs) {
    header.raw = answers.raw_sum.sum;
    header.top = static_cast<uint32_t>(answers.raw_top.candidates.size());
  }
  if (filters) header.edited = answers.edited_sum.sum;
  std::memcpy(out, &header, sizeof(header));
  out += sizeof(header);
  for (const Candidate& candidate : answers.best.candidates) {
    float now = candidate.value;
    if (!IsGreedy(params) && !filters && logprobs) {  // its value is not the logit
      const float* at = logits.f32() + static_cast<int64_t>(row) * logits.stride + candidate.index;
      KVERN_RETURN_IF_ERROR(device_.CopyToHost(&now, at, sizeof(now)));
    }
    TokenLogit token{Ordered(candidate.value), RawLogit(edits_[row], candidate.index, now),
                     vocab_.begin + candidate.index};
    std::memcpy(out, &token, sizeof(token));
    out += sizeof(token);
  }
  if (!logprobs) return absl::OkStatus();
  out = mine_.data() + plan.offset + sizeof(header) + plan.candidates * sizeof(TokenLogit);
  for (Candidate candidate : answers.raw_top.candidates) {
    candidate.index += vocab_.begin;
    std::memcpy(out, &candidate, sizeof(candidate));
    out += sizeof(candidate);
  }
  return absl::OkStatus();
}

Sampler::RowHeader Sampler::HeaderOf(int rank, const RowPlan& plan) const {
  RowHeader header;
  std::memcpy(&header, gathered_.data() + static_cast<size_t>(rank) * mine_.size() + plan.offset,
              sizeof(header));
  return header;
}

CandidateSet Sampler::Merge(const RowPlan& plan, const SamplingParams& params) const {
  CandidateSet set;
  std::vector<LogSumExpPart> parts;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    RowHeader header = HeaderOf(rank, plan);
    const std::byte* at = gathered_.data() + static_cast<size_t>(rank) * mine_.size() +
                          plan.offset + sizeof(RowHeader);
    size_t before = set.tokens.size();
    set.tokens.resize(before + header.candidates);
    std::memcpy(set.tokens.data() + before, at, header.candidates * sizeof(TokenLogit));
    if (header.candidates < header.columns) {
      float last = set.tokens.back().logit;
      set.floor = set.floor ? std::max(*set.floor, last) : last;
    }
    parts.push_back(header.edited);
  }
  std::sort(set.tokens.begin(), set.tokens.end(), IsBetter);
  if (!IsGreedy(params)) {
    MergeLogSumExp(parts, 1.0 / static_cast<double>(params.temperature), &set.total_mass);
  }
  return set;
}

std::optional<TokenLogit> Sampler::Choose(const RowPlan& plan, const SampleRow& what) const {
  const ResolvedSampling& params = *what.params;
  CandidateSet set = Merge(plan, params);
  // Greedy, or Gumbel noise added over whole shards: the best of the shards' best.
  if (IsGreedy(params) || !HasFilters(params, vocab_size_)) return set.tokens[0];
  auto distribution = FilteredDistribution(set, params, vocab_size_);
  if (!distribution) return std::nullopt;
  uint32_t id = DrawToken(*distribution, DrawKey(params.seed, what.choice, what.position));
  for (const TokenLogit& token : set.tokens) {
    if (token.token_id == id) return token;
  }
  KVERN_CHECK(false) << "token " << id << " was drawn but is no candidate";
  return std::nullopt;
}

absl::StatusOr<std::vector<Sampler::LogitPair>> Sampler::GatherWholeRows(
    Tensor logits, std::span<const size_t> rows, size_t width) {
  std::vector<LogitPair> mine(rows.size() * width);
  for (size_t i = 0; i < rows.size(); ++i) {
    KVERN_ASSIGN_OR_RETURN(const float* values, HostRow(logits, rows[i]));
    for (uint32_t c = 0; c < vocab_.size(); ++c) {
      mine[i * width + c] = {Ordered(values[c]), RawLogit(edits_[rows[i]], c, values[c])};
    }
  }
  std::vector<LogitPair> all(mine.size() * static_cast<size_t>(comm_.world()));
  KVERN_RETURN_IF_ERROR(comm_.AllGather(mine.data(), mine.size() * sizeof(LogitPair), all.data()));
  return all;
}

absl::Status Sampler::ChooseFromWholeRows(Tensor logits, std::span<const SampleRow> rows,
                                          const RowPlan& any_plan,
                                          std::vector<std::optional<TokenLogit>>& chosen) {
  std::vector<size_t> open;
  for (size_t row = 0; row < chosen.size(); ++row) {
    if (!chosen[row]) open.push_back(row);
  }
  std::vector<uint32_t> columns;  // of each rank
  for (int rank = 0; rank < comm_.world(); ++rank) {
    columns.push_back(HeaderOf(rank, any_plan).columns);
  }
  size_t width = *std::max_element(columns.begin(), columns.end());
  for (size_t first = 0; first < open.size(); first += kWholeRowsAtOnce) {
    size_t count = std::min(kWholeRowsAtOnce, open.size() - first);
    auto group = std::span<const size_t>(open).subspan(first, count);
    KVERN_ASSIGN_OR_RETURN(auto pairs, GatherWholeRows(logits, group, width));
    for (size_t i = 0; i < count; ++i) {
      std::vector<TokenLogit> by_id;
      for (size_t rank = 0; rank < columns.size(); ++rank) {
        const LogitPair* part = pairs.data() + (rank * count + i) * width;
        for (uint32_t c = 0; c < columns[rank]; ++c) {
          by_id.push_back({part[c].logit, part[c].raw, static_cast<uint32_t>(by_id.size())});
        }
      }
      CandidateSet set{by_id, std::nullopt, 0};
      std::sort(set.tokens.begin(), set.tokens.end(), IsBetter);
      const SampleRow& what = rows[group[i]];
      auto distribution = FilteredDistribution(set, *what.params, vocab_size_);
      uint64_t key = DrawKey(what.params->seed, what.choice, what.position);
      chosen[group[i]] = by_id[DrawToken(*distribution, key)];
    }
  }
  return absl::OkStatus();
}

TokenLogprob Sampler::Logprob(const RowPlan& plan, const TokenLogit& chosen) const {
  std::vector<LogSumExpPart> parts;
  std::vector<TokenLogit> best;
  for (int rank = 0; rank < comm_.world(); ++rank) {
    RowHeader header = HeaderOf(rank, plan);
    parts.push_back(header.raw);
    const std::byte* at = gathered_.data() + static_cast<size_t>(rank) * mine_.size() +
                          plan.offset + sizeof(RowHeader) + plan.candidates * sizeof(TokenLogit);
    for (uint32_t i = 0; i < header.top; ++i, at += sizeof(Candidate)) {
      Candidate candidate;
      std::memcpy(&candidate, at, sizeof(candidate));
      best.push_back({candidate.value, candidate.value, candidate.index});
    }
  }
  std::sort(best.begin(), best.end(), IsBetter);
  best.resize(std::min(best.size(), plan.top));
  double mass = 0;
  double log_sum = MergeLogSumExp(parts, 1.0, &mass);
  auto logprob = [&](float raw) { return static_cast<float>(static_cast<double>(raw) - log_sum); };
  TokenLogprob result{chosen.token_id, logprob(chosen.raw), {}};
  for (const TokenLogit& token : best) result.top.emplace_back(token.token_id, logprob(token.raw));
  return result;
}

}  // namespace kvern
