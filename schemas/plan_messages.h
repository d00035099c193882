// What the leader of a group tells its ranks: one plan per step, said as what changed.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "schemas/client_messages.h"
#include "schemas/ids.h"
#include "schemas/sampling.h"

namespace kvern {

// A place in every rank's table of running sequences; small and reused.
using Slot = uint32_t;
// A KV block's number, the same on every rank.
using BlockId = uint32_t;

// A sequence enters: every rank keeps this until the slot is released.
struct SequenceStart {
  Slot slot = 0;
  std::vector<uint32_t> tokens;  // prompt, then what was emitted before
  uint32_t prompt_tokens = 0;    // how many of `tokens` are the prompt
  uint32_t choice = 0;
  ResolvedSampling sampling;
  std::vector<uint32_t> eos_ids;
  friend bool operator==(const SequenceStart&, const SequenceStart&) = default;
};

// A choice splits off another sequence, sharing its whole blocks: fan-out of n.
struct SequenceFork {
  Slot from = 0;
  Slot to = 0;
  uint32_t choice = 0;
  friend bool operator==(const SequenceFork&, const SequenceFork&) = default;
};

// `to` becomes a copy of `from` in all layers, before anything of this step runs.
struct BlockCopy {
  BlockId from = 0;
  BlockId to = 0;
  friend bool operator==(const BlockCopy&, const BlockCopy&) = default;
};

// Replaces the tail of a slot's block table: entries from `first` on.
struct BlockAppend {
  Slot slot = 0;
  uint32_t first = 0;
  std::vector<BlockId> blocks;
  friend bool operator==(const BlockAppend&, const BlockAppend&) = default;
};

// `count` tokens of the slot's sequence, from `start`, are computed in this step. With `sample`,
// the last of them yields the next token.
struct PlanRow {
  Slot slot = 0;
  uint32_t start = 0;
  uint32_t count = 0;
  bool sample = false;
  friend bool operator==(const PlanRow&, const PlanRow&) = default;
};

// Order of effect: releases, starts, forks, appends, copies, rows.
struct StepPlan {
  uint64_t step_id = 0;
  uint64_t previous_samples_hash =
      0;  // of the step before, by the leader; ranks compare with theirs
  std::vector<Slot> releases;
  std::vector<SequenceStart> starts;
  std::vector<SequenceFork> forks;
  std::vector<BlockAppend> appends;
  std::vector<BlockCopy> copies;
  std::vector<PlanRow> rows;
  bool stop = false;  // the group ends after this plan
  friend bool operator==(const StepPlan&, const StepPlan&) = default;

  uint32_t NumTokens() const {
    uint32_t tokens = 0;
    for (const PlanRow& row : rows) tokens += row.count;
    return tokens;
  }
};

// A token drawn for a row that asked for one.
struct SampledToken {
  Slot slot = 0;
  uint32_t token_id = 0;
  TokenLogprob logprob;  // filled when the sequence asked for logprobs
  friend bool operator==(const SampledToken&, const SampledToken&) = default;
};

struct StepResult {
  uint64_t step_id = 0;
  std::vector<SampledToken> samples;  // in the order of the plan's sampling rows
  friend bool operator==(const StepResult&, const StepResult&) = default;
};

// Hash over (slot, token) of all samples; equal on all ranks or the group is broken.
uint64_t SamplesHash(const StepResult& result);

}  // namespace kvern
