// Draws the next tokens of a step. The logits are spread over the ranks by vocabulary; every rank
// gathers the same candidates, in a number of collectives that does not grow with the rows, and
// draws the same tokens from them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/capacity/kv_budget.h"
#include "schemas/plan_messages.h"
#include "worker/comm/communicator.h"
#include "worker/device/ops.h"
#include "worker/model/distribution.h"
#include "worker/model/logit_edits.h"

namespace kvern {

// One row of logits and how its token is drawn. What it points to outlives the call.
struct SampleRow {
  Slot slot = 0;
  const ResolvedSampling* params = nullptr;
  uint32_t choice = 0;
  uint32_t position = 0;              // index of the drawn token in the choice's output
  std::span<const uint32_t> tokens;   // the sequence so far: prompt, then output
  uint32_t prompt_tokens = 0;         // how many of `tokens` are the prompt
  std::span<const uint32_t> eos_ids;  // masked, like the stop ids, before min_tokens
};

class Sampler {
 public:
  // `vocab`: the token ids of this rank's columns. Pointers outlive the sampler.
  Sampler(Device* device, Communicator* comm, ShardRange vocab, uint32_t vocab_size);

  // Draws one token per row; logits: [rows, vocab.size()], float32 on the device, and changed by
  // bias and penalties. Every rank calls it with the same rows and gets the same tokens. Order
  // as in vLLM V1: logit_bias, min_tokens, penalties, temperature, min_p, top_k, top_p. Noise is
  // keyed by (seed, choice, position, token id). Log-probabilities are of the raw logits.
  // Errors are the communicator's and the device's.
  absl::StatusOr<std::vector<SampledToken>> Sample(Tensor logits, std::span<const SampleRow> rows);

 private:
  // How a row's part of the exchanged bytes is laid out; the same on all ranks. A rank's bytes are,
  // row after row: RowHeader, `candidates` x TokenLogit, `top` x Candidate.
  struct RowPlan {
    size_t candidates = 0;
    size_t top = 0;
    size_t offset = 0;
  };
  struct RowHeader;
  struct LogitPair {
    float logit = 0;
    float raw = 0;
  };

  std::vector<RowPlan> PlanRows(std::span<const SampleRow> rows);
  // What this rank's columns say of each row, into mine_. In two rounds of questions: of the raw
  // logits, and of the edited ones.
  absl::Status Collect(Tensor logits, std::span<const SampleRow> rows,
                       std::span<const RowPlan> plans);
  void AskRaw(Tensor logits, std::span<const SampleRow> rows, std::span<const RowPlan> plans);
  void AskEdited(Tensor logits, std::span<const SampleRow> rows, std::span<const RowPlan> plans);
  void Ask(const LogitQuery& query, LogitAnswer& place);
  void FinishRound(Tensor logits);
  absl::Status Write(Tensor logits, size_t row, const SampleRow& what, const RowPlan& plan);
  absl::Status Edit(Tensor logits, size_t row, const SampleRow& what);
  // The row's logits where the host can read them, until the next call.
  absl::StatusOr<float*> HostRow(Tensor logits, size_t row);
  // The same row as rank `rank` sent it.
  RowHeader HeaderOf(int rank, const RowPlan& plan) const;
  CandidateSet Merge(const RowPlan& plan, const SamplingParams& params) const;
  // The chosen token, or nothing when the candidates do not suffice.
  std::optional<TokenLogit> Choose(const RowPlan& plan, const SampleRow& what) const;
  // For the rows that lack a choice: gathers all their logits, a bounded number of rows at a time.
  absl::Status ChooseFromWholeRows(Tensor logits, std::span<const SampleRow> rows,
                                   const RowPlan& any_plan,
                                   std::vector<std::optional<TokenLogit>>& chosen);
  // All logits of the given rows as [world][row][width]; ranks pad theirs to `width` columns.
  absl::StatusOr<std::vector<LogitPair>> GatherWholeRows(Tensor logits,
                                                         std::span<const size_t> rows,
                                                         size_t width);
  TokenLogprob Logprob(const RowPlan& plan, const TokenLogit& chosen) const;

  Device& device_;
  Ops& ops_;
  Communicator& comm_;
  const ShardRange vocab_;
  const uint32_t vocab_size_;
  LogitEditor editor_;
  std::vector<LogitEdits> edits_;  // of each row, this rank's columns
  // Of each row; what was not asked is stale.
  struct RowAnswers {
    LogitAnswer raw_sum, raw_top, best, edited_sum;
  };
  std::vector<RowAnswers> answers_;
  std::vector<LogitQuery> queries_;   // of a round
  std::vector<LogitAnswer*> places_;  // where the round's answers go
  std::vector<LogitAnswer> round_;
  std::vector<float> row_copy_;  // scratch, of a row in memory that the host cannot reach
  std::vector<std::byte> mine_;
  std::vector<std::byte> gathered_;  // [world][mine_.size()]
};

}  // namespace kvern
