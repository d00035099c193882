// The parts that messages of both sockets have: sampling parameters and logprobs.
#include <cmath>
#include <limits>

#include "schemas/codec_internal.h"

namespace kvern::codec {
namespace {

constexpr float kMaxFloat = std::numeric_limits<float>::max();

std::optional<uint32_t> ReadLogprobCount(const char* field, flatbuffers::Optional<uint32_t> count,
                                         Checks& checks) {
  if (!count.has_value()) return std::nullopt;
  return checks.Within<uint32_t>(field, *count, 0, kMaxLogprobs);
}

std::vector<std::pair<uint32_t, float>> ReadBias(
    const flatbuffers::Vector<const wire::TokenValue*>* list, Checks& checks) {
  std::vector<std::pair<uint32_t, float>> bias;
  if (list == nullptr || !checks.Structs("logit_bias", *list, kMaxLogitBias)) return bias;
  bias.reserve(list->size());
  for (flatbuffers::uoffset_t i = 0; i < list->size(); ++i) {
    const wire::TokenValue* entry = list->Get(i);
    bias.emplace_back(entry->token_id(),
                      checks.Real({"logit_bias", i}, entry->value(), -kMaxAbsBias, kMaxAbsBias));
  }
  return bias;
}

flatbuffers::Offset<wire::SamplingParams> Put(flatbuffers::FlatBufferBuilder& builder,
                                              const SamplingParams& sampling, uint64_t seed,
                                              uint32_t max_tokens) {
  auto bias = PutStructs<wire::TokenValue>(builder, sampling.logit_bias, [](const auto& entry) {
    return wire::TokenValue(entry.first, entry.second);
  });
  auto stop_ids = PutList(builder, sampling.stop_token_ids);
  wire::SamplingParamsBuilder table(builder);
  table.add_seed(seed);
  table.add_temperature(sampling.temperature);
  table.add_top_k(sampling.top_k);
  table.add_top_p(sampling.top_p);
  table.add_min_p(sampling.min_p);
  table.add_repetition_penalty(sampling.repetition_penalty);
  table.add_presence_penalty(sampling.presence_penalty);
  table.add_frequency_penalty(sampling.frequency_penalty);
  table.add_logit_bias(bias);
  table.add_max_tokens(max_tokens);
  table.add_min_tokens(sampling.min_tokens);
  table.add_stop_token_ids(stop_ids);
  if (sampling.logprobs) table.add_logprobs(*sampling.logprobs);
  if (sampling.prompt_logprobs) table.add_prompt_logprobs(*sampling.prompt_logprobs);
  table.add_ignore_eos(sampling.ignore_eos);
  return table.Finish();
}

void ReadInto(const wire::SamplingParams* wire, SamplingParams& sampling, Checks& checks) {
  sampling.temperature = checks.Real("temperature", wire->temperature(), 0.0f, kMaxTemperature);
  sampling.top_k = wire->top_k();
  sampling.top_p = wire->top_p();
  if (!(sampling.top_p > 0.0f && sampling.top_p <= 1.0f)) {
    checks.OutOfRange("top_p", sampling.top_p, "0 < top_p <= 1");
  }
  sampling.min_p = checks.Real("min_p", wire->min_p(), 0.0f, 1.0f);
  sampling.repetition_penalty = wire->repetition_penalty();
  if (!(sampling.repetition_penalty > 0.0f &&
        sampling.repetition_penalty <= kMaxRepetitionPenalty)) {
    checks.OutOfRange("repetition_penalty", sampling.repetition_penalty,
                      "0 < repetition_penalty <= 100");
  }
  sampling.presence_penalty =
      checks.Real("presence_penalty", wire->presence_penalty(), -kMaxAbsPenalty, kMaxAbsPenalty);
  sampling.frequency_penalty =
      checks.Real("frequency_penalty", wire->frequency_penalty(), -kMaxAbsPenalty, kMaxAbsPenalty);
  sampling.logit_bias = ReadBias(wire->logit_bias(), checks);
  sampling.min_tokens = wire->min_tokens();
  sampling.ignore_eos = wire->ignore_eos();
  sampling.stop_token_ids = checks.List("stop_token_ids", wire->stop_token_ids(), kMaxStopTokenIds);
  sampling.logprobs = ReadLogprobCount("logprobs", wire->logprobs(), checks);
  sampling.prompt_logprobs = ReadLogprobCount("prompt_logprobs", wire->prompt_logprobs(), checks);
}

}  // namespace

flatbuffers::Offset<wire::SamplingParams> PutSampling(flatbuffers::FlatBufferBuilder& builder,
                                                      const SamplingParams& sampling) {
  const ResolvedSampling absent;
  return Put(builder, sampling, absent.seed, absent.max_tokens);
}

flatbuffers::Offset<wire::SamplingParams> PutSampling(flatbuffers::FlatBufferBuilder& builder,
                                                      const ResolvedSampling& sampling) {
  return Put(builder, sampling, sampling.seed, sampling.max_tokens);
}

SamplingParams ReadSampling(const wire::SamplingParams* wire, Checks& checks) {
  SamplingParams sampling;
  if (wire == nullptr) return sampling;  // All defaults.
  const ResolvedSampling absent;
  if (wire->seed() != absent.seed) {
    checks.OutOfRange("sampling.seed", wire->seed(), "none: the request's own field is seed");
  }
  if (wire->max_tokens() != absent.max_tokens) {
    checks.OutOfRange("sampling.max_tokens", wire->max_tokens(),
                      "none: the request's own field is max_tokens");
  }
  ReadInto(wire, sampling, checks);
  return sampling;
}

ResolvedSampling ReadResolvedSampling(const wire::SamplingParams* wire, Checks& checks) {
  ResolvedSampling sampling;
  if (wire == nullptr) return sampling;  // All defaults.
  ReadInto(wire, sampling, checks);
  sampling.seed = wire->seed();
  sampling.max_tokens = wire->max_tokens();
  return sampling;
}

LogprobOffsets PutLogprobs(flatbuffers::FlatBufferBuilder& builder,
                           const std::vector<TokenLogprob>& logprobs) {
  LogprobOffsets offsets;
  if (logprobs.empty()) return offsets;
  size_t num_top = 0;
  for (const TokenLogprob& logprob : logprobs) num_top += logprob.top.size();
  offsets.tokens =
      PutStructs<wire::TokenLogprob>(builder, logprobs, [](const TokenLogprob& logprob) {
        return wire::TokenLogprob(logprob.token_id, logprob.logprob,
                                  static_cast<uint32_t>(logprob.top.size()));
      });
  if (num_top == 0) return offsets;
  auto fill = [token = logprobs.begin(), k = size_t{0}](size_t, wire::TokenValue* to,
                                                        const void*) mutable {
    for (; k == token->top.size(); k = 0) ++token;
    const auto& [id, value] = token->top[k++];
    *to = wire::TokenValue(id, value);
  };
  offsets.top = builder.CreateVectorOfStructs<wire::TokenValue>(num_top, fill, &logprobs);
  return offsets;
}

std::vector<TokenLogprob> ReadLogprobs(const flatbuffers::Vector<const wire::TokenLogprob*>* tokens,
                                       const flatbuffers::Vector<const wire::TokenValue*>* top,
                                       size_t num_tokens, Checks& checks) {
  std::vector<TokenLogprob> logprobs;
  size_t count = tokens == nullptr ? 0 : tokens->size();
  size_t top_left = top == nullptr ? 0 : top->size();
  if (count != 0 && count != num_tokens) {
    checks.OutOfRange("logprobs", absl::StrCat("with ", count, " entries"),
                      absl::StrCat("none or one for each of ", num_tokens, " tokens"));
  }
  if (count == 0 || !checks.Spend("logprobs", count * sizeof(wire::TokenLogprob)) ||
      !checks.Spend("logprobs_top", top_left * sizeof(wire::TokenValue))) {
    return logprobs;
  }
  logprobs.reserve(count);
  flatbuffers::uoffset_t next = 0;
  for (flatbuffers::uoffset_t i = 0; i < count && checks.ok(); ++i) {
    const wire::TokenLogprob* token = tokens->Get(i);
    uint32_t num_top =
        checks.Within<uint32_t>({"logprobs", i, "num_top"}, token->num_top(), 0, kMaxLogprobs);
    if (num_top > top_left) checks.Missing({"logprobs_top", next});
    if (!checks.ok()) break;
    TokenLogprob& logprob = logprobs.emplace_back();
    logprob.token_id = token->token_id();
    logprob.logprob = checks.Real({"logprobs", i}, token->logprob(), -kMaxFloat, kMaxFloat);
    logprob.top.reserve(num_top);
    for (uint32_t k = 0; k < num_top; ++k, ++next, --top_left) {
      const wire::TokenValue* entry = top->Get(next);
      logprob.top.emplace_back(
          entry->token_id(),
          checks.Real({"logprobs_top", next}, entry->value(), -kMaxFloat, kMaxFloat));
    }
  }
  return logprobs;
}

}  // namespace kvern::codec
