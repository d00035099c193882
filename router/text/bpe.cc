#include "router/text/bpe.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;
constexpr uint32_t kDead = 0xFFFFFFFE;

}  // namespace

void BpeMerger::Consider(uint32_t left, uint64_t* steps) {
  const uint32_t right = symbols_[left].next;
  if (right == kNone) return;
  ++*steps;
  const BpeMerges::Rule* rule = merges_->Find(symbols_[left].id, symbols_[right].id);
  if (rule == nullptr) return;
  ++*steps;
  heap_.push_back({rule->rank, left});
  std::push_heap(heap_.begin(), heap_.end());
}

void BpeMerger::Apply(const Candidate& candidate, uint64_t* steps) {
  Symbol& left = symbols_[candidate.left];
  if (left.next == kDead || left.next == kNone) return;
  Symbol& right = symbols_[left.next];
  const BpeMerges::Rule* rule = merges_->Find(left.id, right.id);
  if (rule == nullptr || rule->rank != candidate.rank) return;
  left.id = rule->merged;
  left.next = right.next;
  right.next = kDead;
  if (left.next != kNone) symbols_[left.next].previous = candidate.left;
  if (left.previous != kNone) Consider(left.previous, steps);
  Consider(candidate.left, steps);
}

void BpeMerger::Merge(std::span<const uint32_t> ids, std::vector<uint32_t>* output,
                      uint64_t* steps) {
  KVERN_CHECK_LT(ids.size(), size_t{kDead});
  if (ids.empty()) return;
  const uint32_t count = static_cast<uint32_t>(ids.size());
  symbols_.clear();
  heap_.clear();
  symbols_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    symbols_.push_back({ids[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }
  for (uint32_t i = 0; i + 1 < count; ++i) Consider(i, steps);
  while (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end());
    const Candidate candidate = heap_.back();
    heap_.pop_back();
    ++*steps;
    Apply(candidate, steps);
  }
  // Symbol 0 is never merged into another: it is the head of the list.
  for (uint32_t i = 0; i != kNone; i = symbols_[i].next) output->push_back(symbols_[i].id);
}

}  // namespace kvern
