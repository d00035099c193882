#include "tests/worker/core/checked_rank.h"

#include "cluster/base/check.h"
#include "cluster/base/rng.h"

namespace kvern {

uint32_t CheckedRank::Token(uint32_t id, uint32_t choice, size_t position) {
  return static_cast<uint32_t>(HashCounter(id, choice, position) % kVocab);
}

StepResult CheckedRank::Execute(const StepPlan& plan) {
  Update(plan);
  StepResult result;
  result.step_id = plan.step_id;
  std::set<BlockId> written;
  for (const PlanRow& row : plan.rows) {
    RunRow(row, written);
    if (!row.sample) continue;
    Sequence& sequence = slots_.at(row.slot);
    KVERN_CHECK_EQ(sequence.tokens.size(), row.start + row.count);
    size_t position = sequence.tokens.size() - sequence.prompt_tokens;
    sequence.tokens.push_back(Token(sequence.id, sequence.choice, position));
    sequence.drawn = true;
    result.samples.push_back({row.slot, sequence.tokens.back(), {}});
  }
  return result;
}

void CheckedRank::Update(const StepPlan& plan) {
  for (Slot slot : plan.releases) KVERN_CHECK_EQ(slots_.erase(slot), 1u) << "slot " << slot;
  for (const SequenceStart& start : plan.starts) {
    Sequence sequence{start.tokens[0], start.choice, start.prompt_tokens, start.tokens, {}, false};
    KVERN_CHECK(slots_.emplace(start.slot, std::move(sequence)).second) << "slot " << start.slot;
  }
  for (const SequenceFork& fork : plan.forks) {
    Sequence sequence = slots_.at(fork.from);
    sequence.tokens.resize(sequence.prompt_tokens);
    sequence.choice = fork.choice;
    KVERN_CHECK(slots_.emplace(fork.to, std::move(sequence)).second) << "slot " << fork.to;
  }
  for (const BlockAppend& append : plan.appends) {
    std::vector<BlockId>& table = slots_.at(append.slot).table;
    KVERN_CHECK_LE(append.first, table.size());
    table.resize(append.first);
    table.insert(table.end(), append.blocks.begin(), append.blocks.end());
  }
  for (const BlockCopy& copy : plan.copies) kv_.at(copy.to) = kv_.at(copy.from);
}

void CheckedRank::RunRow(const PlanRow& row, std::set<BlockId>& written) {
  const Sequence& sequence = slots_.at(row.slot);
  uint32_t end = row.start + row.count;
  KVERN_CHECK_LE(end, sequence.tokens.size());
  uint64_t hash = 0;
  for (uint32_t i = 0; i < end; ++i) {
    hash = HashCounter(hash, sequence.tokens[i]);
    BlockId block = sequence.table.at(i / kBlockSize);
    uint64_t& place = kv_.at(block)[i % kBlockSize];
    if (i < row.start) {
      KVERN_CHECK_EQ(place, hash) << "token " << i << " of slot " << row.slot;
      continue;
    }
    if (i == row.start || i % kBlockSize == 0) {
      KVERN_CHECK(written.insert(block).second) << "block " << block << " is written by two rows";
    }
    place = hash;
  }
  Count(sequence, row);
}

void CheckedRank::Count(const Sequence& sequence, const PlanRow& row) {
  if (!sequence.drawn) prefill_tokens_ += row.count;
  for (uint32_t i = row.start; i < row.start + row.count; ++i) {
    bool shared = i + 1 < sequence.prompt_tokens;
    bool is_new = computed_[sequence.id].insert({shared ? 0 : sequence.choice, i}).second;
    if (!is_new) ++recomputed_tokens_;
  }
}

}  // namespace kvern
