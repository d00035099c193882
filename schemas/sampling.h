// How tokens are drawn: as a request says it, and as workers are told.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace kvern {

// How tokens are drawn and when a choice ends, as a request says it. Meaning and order as in vLLM
// V1. The request's seed and max_tokens are beside it: absent, they are the service's to choose.
struct SamplingParams {
  float temperature = 1.0f;  // 0: greedy, ties to the lower id
  uint32_t top_k = 0;        // 0: off
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<uint32_t, float>> logit_bias;
  uint32_t min_tokens = 0;
  bool ignore_eos = false;  // The model's EOS ids only, not stop_token_ids.
  std::vector<uint32_t> stop_token_ids;
  std::optional<uint32_t> logprobs;  // K of the K best beside the chosen token's
  std::optional<uint32_t> prompt_logprobs;
  friend bool operator==(const SamplingParams&, const SamplingParams&) = default;
};

// The same once the request is accepted: the router has chosen what it left open.
struct ResolvedSampling : SamplingParams {
  uint64_t seed = 0;
  uint32_t max_tokens = 256;
  friend bool operator==(const ResolvedSampling&, const ResolvedSampling&) = default;
};

}  // namespace kvern
