#include "worker/model/logit_edits.h"

#include <algorithm>

namespace kvern {
namespace {

bool HasPenalties(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

}  // namespace

bool HasEdits(const EditInput& input) {
  const SamplingParams& params = *input.params;
  return !params.logit_bias.empty() || input.position < params.min_tokens || HasPenalties(params);
}

void LogitEditor::Touch(uint32_t column, const float* logits, LogitEdits& edits) {
  edits.emplace_back(column, logits[column]);
}

void LogitEditor::Apply(const EditInput& input, float* logits, LogitEdits& edits) {
  edits.clear();
  const SamplingParams& params = *input.params;
  for (const auto& [token, bias] : params.logit_bias) {
    if (!Holds(token)) continue;
    Touch(token - vocab_.begin, logits, edits);
    logits[token - vocab_.begin] += bias;
  }
  if (input.position < params.min_tokens) {
    for (std::span<const uint32_t> ids : {input.eos_ids, std::span(params.stop_token_ids)}) {
      for (uint32_t token : ids) {
        if (!Holds(token)) continue;
        Touch(token - vocab_.begin, logits, edits);
        logits[token - vocab_.begin] = kMaskedLogit;
      }
    }
  }
  if (HasPenalties(params)) Penalise(input, logits, edits);
  // Of several edits of a column the first saw the value from before; the sort keeps it in front.
  auto by_column = [](const auto& a, const auto& b) { return a.first < b.first; };
  std::stable_sort(edits.begin(), edits.end(), by_column);
  auto same_column = [](const auto& a, const auto& b) { return a.first == b.first; };
  edits.erase(std::unique(edits.begin(), edits.end(), same_column), edits.end());
}

void LogitEditor::Penalise(const EditInput& input, float* logits, LogitEdits& edits) {
  const SamplingParams& params = *input.params;
  for (size_t i = 0; i < input.tokens.size(); ++i) {
    if (!Holds(input.tokens[i])) continue;
    uint32_t column = input.tokens[i] - vocab_.begin;
    Counts& counts = counts_[column];
    if (!counts.seen) seen_.push_back(column);
    counts.seen = true;
    if (i >= input.prompt_tokens) ++counts.output;
  }
  for (uint32_t column : seen_) {
    Touch(column, logits, edits);
    float& logit = logits[column];
    float repetition = params.repetition_penalty;
    logit = logit > 0 ? logit / repetition : logit * repetition;
    auto count = static_cast<float>(counts_[column].output);
    logit -= params.frequency_penalty * count;
    logit -= params.presence_penalty * (count > 0 ? 1.0f : 0.0f);
    counts_[column] = Counts();
  }
  seen_.clear();
}

float RawLogit(const LogitEdits& edits, uint32_t column, float now) {
  auto before = [](const std::pair<uint32_t, float>& edit, uint32_t c) { return edit.first < c; };
  auto it = std::lower_bound(edits.begin(), edits.end(), column, before);
  return it != edits.end() && it->first == column ? it->second : now;
}

}  // namespace kvern
