#include "kernels/cuda/attention_plan.h"

#include <algorithm>

namespace kvern::gpu {

namespace {

constexpr int32_t kNarrowRows = 16;
constexpr int32_t kWideRows = 64;
constexpr int64_t kMaxGroup = 16;

int32_t SplitsOf(int32_t keys) { return (keys + kSplitTokens - 1) / kSplitTokens; }

// Whole items: full tiles of 64 rows while more than 16 rows are left, then one of up to 16.
void CutTokens(const AttentionSequence& sequence, int32_t group, AttentionPlan* plan) {
  for (int32_t done = 0; done < sequence.count;) {
    const int32_t left = sequence.count - done;
    const bool wide = left * group > kNarrowRows;
    AttentionItem item;
    item.first_row = sequence.first_row + done;
    item.tokens = wide ? std::min(left, kWideRows / group) : left;
    item.position = sequence.start + done;
    item.table = sequence.table;
    item.split_end = SplitsOf(item.position + item.tokens);
    (wide ? plan->wide : plan->narrow).push_back(item);
    done += item.tokens;
  }
}

int64_t WorkOf(const std::vector<AttentionItem>& items) {
  int64_t splits = 0;
  for (const AttentionItem& item : items) splits += item.split_end;
  return splits;
}

// Cuts items of more than `splits_max` splits into single splits, as the workspace allows.
void CutSplits(int64_t splits_max, int32_t max_slots, std::vector<AttentionItem>* items,
               AttentionPlan* plan) {
  std::stable_sort(
      items->begin(), items->end(),
      [](const AttentionItem& a, const AttentionItem& b) { return a.split_end > b.split_end; });
  std::vector<AttentionItem> cut;
  size_t whole = 0;
  for (const AttentionItem& item : *items) {
    const int32_t splits = item.split_end;
    const int64_t slots = static_cast<int64_t>(splits) * item.tokens;
    if (splits < 2 || splits <= splits_max || slots > max_slots - plan->slots) {
      (*items)[whole++] = item;
      continue;
    }
    AttentionItem part = item;
    part.partial = plan->slots;
    part.partial_stride = splits;
    for (part.split_begin = 0; part.split_begin < splits; ++part.split_begin) {
      part.split_end = part.split_begin + 1;
      cut.push_back(part);
    }
    for (int32_t token = 0; token < item.tokens; ++token) {
      plan->merges.push_back({item.first_row + token, plan->slots + token * splits,
                              SplitsOf(item.position + token + 1), 0});
    }
    plan->slots += static_cast<int32_t>(slots);
  }
  items->resize(whole);
  items->insert(items->end(), cut.begin(), cut.end());
}

}  // namespace

std::string AttentionUnsupported(int64_t head_dim, int64_t q_heads, int64_t kv_heads) {
  if (head_dim != 16 && head_dim != 32 && head_dim != 64 && head_dim != 128) {
    return "head_dim = " + std::to_string(head_dim) +
           ": the CUDA attention kernel has 16, 32, 64 and 128 (80, 96 and 256 are not there yet)";
  }
  const std::string heads =
      std::to_string(q_heads) + " query heads on " + std::to_string(kv_heads) + " KV heads";
  if (q_heads <= 0 || kv_heads <= 0 || q_heads % kv_heads != 0) {
    return heads + ": must be a positive multiple";
  }
  if (q_heads / kv_heads > kMaxGroup) {
    return heads + ": the CUDA attention kernel has at most " + std::to_string(kMaxGroup) +
           " query heads per KV head";
  }
  return "";
}

size_t AttentionWorkspaceBytes(int64_t slots, int64_t q_heads, int64_t head_dim) {
  // Sums of values, maximum, sum of weights.
  return static_cast<size_t>(slots * q_heads * (head_dim + 2)) * sizeof(float);
}

void PlanAttention(std::span<const AttentionSequence> sequences, int32_t q_heads, int32_t kv_heads,
                   const AttentionBudget& budget, AttentionPlan* plan) {
  plan->narrow.clear();
  plan->wide.clear();
  plan->merges.clear();
  plan->slots = 0;
  for (const AttentionSequence& sequence : sequences) CutTokens(sequence, q_heads / kv_heads, plan);
  // A block's even share of the step, in splits. What walks much less than that in one go leaves no
  // long tail. Cutting a wide item costs more, its partial results weigh as much as its keys.
  const int64_t blocks = std::max(budget.blocks, 1);
  const int64_t share = (WorkOf(plan->narrow) + WorkOf(plan->wide)) * kv_heads / blocks;
  CutSplits(share, budget.max_slots, &plan->wide, plan);
  CutSplits(share / 4, budget.max_slots, &plan->narrow, plan);
}

}  // namespace kvern::gpu
