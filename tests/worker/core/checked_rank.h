// A rank without a model that knows what every place of its KV blocks holds, so that a plan which
// shares, copies, frees or reuses a wrong block shows.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "schemas/messages.h"

namespace kvern {

class CheckedRank {
 public:
  struct Sequence {
    uint32_t id = 0;  // the prompt's first token names the request
    uint32_t choice = 0;
    uint32_t prompt_tokens = 0;
    std::vector<uint32_t> tokens;
    std::vector<BlockId> table;
    bool drawn = false;
  };

  explicit CheckedRank(uint64_t num_blocks)
      : kv_(num_blocks, std::vector<uint64_t>(kBlockSize, 0)) {}

  // What the model says at a position of a choice of a request; below `kVocab`.
  static constexpr uint32_t kVocab = 50;
  static uint32_t Token(uint32_t id, uint32_t choice, size_t position);

  // Applies the plan. Dies unless each row finds the keys and values of all tokens before it in the
  // blocks of its table, and no two rows write into one block.
  StepResult Execute(const StepPlan& plan);

  const Sequence& at(Slot slot) const { return slots_.at(slot); }
  uint64_t prefill_tokens() const { return prefill_tokens_; }
  // Tokens computed more than once, a prompt shared by choices counted once.
  uint64_t recomputed_tokens() const { return recomputed_tokens_; }

 private:
  void Update(const StepPlan& plan);
  void RunRow(const PlanRow& row, std::set<BlockId>& written);
  void Count(const Sequence& sequence, const PlanRow& row);

  std::vector<std::vector<uint64_t>> kv_;  // [block][place]: hash of all tokens up to there
  std::map<Slot, Sequence> slots_;
  std::map<uint32_t, std::set<std::pair<uint32_t, uint32_t>>> computed_;  // by request
  uint64_t prefill_tokens_ = 0;
  uint64_t recomputed_tokens_ = 0;
};

}  // namespace kvern
