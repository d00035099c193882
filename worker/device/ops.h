// The operations that the decoder is written in, once for all devices. Letters in shapes:
// T tokens of the step, H hidden, V vocabulary rows of this rank, Q/KV query and KV heads of this
// rank, D head_dim, F intermediate columns of this rank, R rows that want logits.
//
// Rule of batch invariance: what an operation computes for a row depends on that row alone (its
// values, its position, its own history), never on T, on neighbours or on how a prompt was cut into
// chunks.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker/device/device.h"

namespace kvern {

// cos and sin of every position, made by the model once: [max_seq_len, D / 2] each, float32.
struct RopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
};

struct Candidate {
  float value = 0;
  uint32_t index = 0;  // column within the shard
};

// Of one logits row: the largest value and sum(exp((x - max) * inverse_temperature)).
struct LogSumExpPart {
  float max = 0;
  double sum = 0;
};

// A question about one row of the logits.
//   kTop: the k largest (fewer if V < k), value descending, then index ascending.
//   kLogSumExp: at the given temperature.
//   kGumbelMax: the column with the largest logit * inverse_temperature + Gumbel noise, and that
//     value; the noise of column i follows from (key, vocab_begin + i) alone, so it does not depend
//     on how columns are sharded.
struct LogitQuery {
  enum class Kind : uint8_t { kTop, kLogSumExp, kGumbelMax };
  Kind kind = Kind::kTop;
  int64_t row = 0;
  int64_t k = 1;  // at most kMaxTopCandidates
  float inverse_temperature = 1;
  uint64_t key = 0;
};
inline constexpr int64_t kMaxTopCandidates = 1024;

struct LogitAnswer {
  std::vector<Candidate> candidates;  // kTop; one for kGumbelMax
  LogSumExpPart sum;                  // kLogSumExp
};

class Ops {
 public:
  virtual ~Ops() = default;

  // out[t] = row (token_ids[t] - vocab_begin) of `table` [V, H] as float32, zero when the token is
  // outside [vocab_begin, vocab_begin + V). out: [T, H].
  virtual void Embed(const Batch& batch, const Matrix& table, int64_t vocab_begin, Tensor out) = 0;

  // out = x / sqrt(mean(x^2) + eps) * weight, per row. weight: float32 [H].
  virtual void RmsNorm(Tensor x, const float* weight, float eps, Tensor out) = 0;

  // x += delta, then out = RmsNorm(x). All [T, H]. `out` may be the same memory as `delta` when
  // it is float32.
  virtual void AddRmsNorm(Tensor delta, Tensor x, const float* weight, float eps, Tensor out) = 0;

  // out[t, n] = bias[n] + sum over k ascending of x[t, k] * weight[n, k]. bias: float32 [N] or
  // null. One accumulator per output (per group, then groups ascending, for quantised weights).
  virtual void MatMul(Tensor x, const Matrix& weight, const float* bias, Tensor out) = 0;

  // qkv: [T, (Q + 2 KV) * D] float32. Rotates q and k by the tokens' positions (pairs i, i + D/2),
  // leaves q in `q` [T, Q * D] and writes k and v into the cache at the tokens' places in `layer`,
  // each rounded once. With float32 activations that is done in place, and `q` must be the first
  // columns of qkv.
  virtual void RopeAndStoreKv(Tensor qkv, const RopeTable& rope, const Batch& batch, int64_t layer,
                              KvCache& cache, Tensor q) = 0;

  // Causal attention of every token over its own sequence's cache, scaled by 1/sqrt(D). Query head
  // h reads KV head h / (Q / KV). q and out: [T, Q * D]. Partial results of key ranges cut at
  // absolute multiples of 256 are merged in ascending order.
  virtual void Attention(Tensor q, const Batch& batch, int64_t layer, const KvCache& cache,
                         Tensor out) = 0;

  // out = silu(gate) * up with gate_up = [gate F | up F]. gate_up: [T, 2F], out: [T, F].
  virtual void SwiGlu(Tensor gate_up, Tensor out) = 0;

  // out[r] = x[rows[r]] for the batch's logit_rows. x: [T, H], out: [R, H].
  virtual void GatherLogitRows(const Batch& batch, Tensor x, Tensor out) = 0;

  // Block `to` of each pair becomes a copy of block `from`, in all layers.
  virtual void CopyBlocks(std::span<const std::pair<uint32_t, uint32_t>> from_to,
                          KvCache& cache) = 0;

  // Answers questions about this rank's columns of the logits, [R, V] float32: all that a step has
  // to ask at once, since asking a GPU costs a round trip. answers[i]: of queries[i], on the host
  // on return (this synchronises; empty if the device has failed).
  virtual void AskLogits(Tensor logits, int64_t vocab_begin, std::span<const LogitQuery> queries,
                         std::vector<LogitAnswer>& answers) = 0;
};

}  // namespace kvern
