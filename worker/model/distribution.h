// From a row's best candidates to the final probabilities of a draw: temperature, min_p, top_k,
// top_p, in vLLM V1's order. Pure functions; the sampler feeds them what the ranks gathered.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "schemas/client_messages.h"

namespace kvern {

// Below this temperature a draw is the largest logit, as in vLLM.
inline constexpr float kGreedyTemperature = 1e-5f;

inline bool IsGreedy(const SamplingParams& params) {
  return params.temperature < kGreedyTemperature;
}
// True when top_k, top_p or min_p can remove a token out of `vocab_size`.
bool HasFilters(const SamplingParams& params, uint32_t vocab_size);

// A token with its logit after bias and penalties, and as the model gave it.
struct TokenLogit {
  float logit = 0;
  float raw = 0;
  uint32_t token_id = 0;
};

// The order of everything here: logit descending, then id ascending.
inline bool IsBetter(const TokenLogit& a, const TokenLogit& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token_id < b.token_id;
}

struct TokenProbability {
  uint32_t token_id = 0;
  double probability = 0;
};

// What is known of a row: its best tokens in order, and of the others only that none has a logit
// above `floor`, and the mass of the whole row.
struct CandidateSet {
  std::vector<TokenLogit> tokens;
  std::optional<float> floor;  // absent: `tokens` is the whole row
  // Sum over the whole row of exp((logit - largest logit) / temperature).
  double total_mass = 0;
};

// The tokens that remain and their probabilities, best first, after
//   min_p: drops p < min_p * the largest p;
//   top_k: keeps what is not below the k-th; all that tie with it stay;
//   top_p: drops a token when those before it already have top_p; the first always stays.
// Each step renormalises. Absent when the unknown tokens could take part in the result. The values
// are never absent for a whole row. REQUIRES: not greedy, at least one token.
std::optional<std::vector<TokenProbability>> FilteredDistribution(const CandidateSet& candidates,
                                                                  const SamplingParams& params,
                                                                  uint32_t vocab_size);

// The key of a draw's noise: a function of (seed, choice, position) alone.
uint64_t DrawKey(uint64_t seed, uint32_t choice, uint32_t position);

// Draws by Gumbel noise: the largest log(probability) + noise(key, token id), ties to the earlier.
// The noise is that of Ops::GumbelMax: but for rounding, a filter that removes nothing changes
// nothing.
uint32_t DrawToken(std::span<const TokenProbability> distribution, uint64_t key);

}  // namespace kvern
