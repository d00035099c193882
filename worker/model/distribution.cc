#include "worker/model/distribution.h"

#include <algorithm>
#include <cmath>

#include "cluster/base/check.h"
#include "cluster/base/rng.h"

namespace kvern {
namespace {

bool HasTopK(const SamplingParams& params, uint32_t vocab_size) {
  return params.top_k > 0 && params.top_k < vocab_size;
}

}  // namespace

bool HasFilters(const SamplingParams& params, uint32_t vocab_size) {
  return HasTopK(params, vocab_size) || params.top_p < 1.0f || params.min_p > 0.0f;
}

std::optional<std::vector<TokenProbability>> FilteredDistribution(const CandidateSet& candidates,
                                                                  const SamplingParams& params,
                                                                  uint32_t vocab_size) {
  const std::vector<TokenLogit>& tokens = candidates.tokens;
  KVERN_CHECK(!tokens.empty());
  double inverse_temperature = 1.0 / static_cast<double>(params.temperature);
  double best = static_cast<double>(tokens[0].logit);
  auto weight = [&](float logit) {
    return std::exp((static_cast<double>(logit) - best) * inverse_temperature);
  };
  // Tokens as good as the floor may be among the unknown ones: the known ones end above it.
  size_t kept = tokens.size();
  if (candidates.floor) {
    while (kept > 0 && tokens[kept - 1].logit <= *candidates.floor) --kept;
  }
  bool complete = !candidates.floor;

  double min_weight = params.min_p > 0 ? static_cast<double>(params.min_p) : 0.0;
  if (candidates.floor && min_weight > weight(*candidates.floor)) complete = true;
  while (kept > 0 && weight(tokens[kept - 1].logit) < min_weight) --kept;
  if (HasTopK(params, vocab_size) && kept >= params.top_k) {
    complete = true;
    float kth = tokens[params.top_k - 1].logit;
    while (tokens[kept - 1].logit < kth) --kept;
  }

  std::vector<TokenProbability> result;
  double known_mass = 0;
  for (size_t i = 0; i < kept; ++i) {
    result.push_back({tokens[i].token_id, weight(tokens[i].logit)});
    known_mass += result.back().probability;
  }
  if (params.top_p < 1.0f) {
    // A cut below the known tokens leaves the mass that top_p is a share of unknown.
    bool other_cut = !complete && (min_weight > 0 || HasTopK(params, vocab_size));
    if (other_cut) return std::nullopt;
    double limit =
        static_cast<double>(params.top_p) * (complete ? known_mass : candidates.total_mass);
    size_t count = 0;
    double before = 0;
    while (count < result.size() && (count == 0 || before < limit)) {
      before += result[count++].probability;
    }
    if (!complete && before < limit) return std::nullopt;
    complete = !result.empty();
    result.resize(count);
    known_mass = before;
  }
  if (!complete) return std::nullopt;
  for (TokenProbability& entry : result) entry.probability /= known_mass;
  return result;
}

uint64_t DrawKey(uint64_t seed, uint32_t choice, uint32_t position) {
  return HashCounter(seed, choice, position);
}

uint32_t DrawToken(std::span<const TokenProbability> distribution, uint64_t key) {
  KVERN_CHECK(!distribution.empty());
  uint32_t best_id = distribution[0].token_id;
  double best_score = 0;
  for (size_t i = 0; i < distribution.size(); ++i) {
    double uniform = UnitInterval(HashCounter(key, distribution[i].token_id));
    double score = std::log(distribution[i].probability) - std::log(-std::log(uniform));
    if (i > 0 && !(score > best_score)) continue;
    best_score = score;
    best_id = distribution[i].token_id;
  }
  return best_id;
}

}  // namespace kvern
