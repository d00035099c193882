#include "router/text/bpe.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {
namespace {

constexpr uint32_t kNone = 0xFFFFFFFF;
constexpr uint32_t kDead = 0xFFFFFFFE;

bool Later(const BpeCandidate& a, const BpeCandidate& b) { return b < a; }

}  // namespace

bool BpeQueue::empty() const {
  return heap_.empty() &&
         std::all_of(runs_.begin(), runs_.end(), [](const Run& run) { return run.empty(); });
}

void BpeQueue::Push(const BpeCandidate& candidate) {
  // Of the runs that it continues, the one that it wastes least of; an empty one if none.
  Run* best = nullptr;
  for (Run& run : runs_) {
    if (!run.empty() && candidate < run.candidates.back()) continue;
    if (best == nullptr || best->empty() ||
        (!run.empty() && best->candidates.back() < run.candidates.back())) {
      best = &run;
    }
  }
  if (best != nullptr) {
    best->candidates.push_back(candidate);
    return;
  }
  heap_.push_back(candidate);
  std::push_heap(heap_.begin(), heap_.end(), Later);
}

BpeCandidate BpeQueue::Pop() {
  Run* best = nullptr;
  for (Run& run : runs_) {
    if (run.empty()) continue;
    if (best == nullptr || run.candidates[run.next] < best->candidates[best->next]) best = &run;
  }
  if (best == nullptr || (!heap_.empty() && heap_.front() < best->candidates[best->next])) {
    KVERN_CHECK(!heap_.empty());
    std::pop_heap(heap_.begin(), heap_.end(), Later);
    const BpeCandidate candidate = heap_.back();
    heap_.pop_back();
    return candidate;
  }
  const BpeCandidate candidate = best->candidates[best->next++];
  if (best->empty()) {
    best->candidates.clear();
    best->next = 0;
  }
  return candidate;
}

void BpeMerger::Consider(uint32_t left, uint64_t* steps) {
  const uint32_t right = symbols_[left].next;
  if (right == kNone) return;
  ++*steps;
  const BpeMerges::Rule* rule = merges_->Find(symbols_[left].id, symbols_[right].id);
  if (rule == nullptr) return;
  ++*steps;
  queue_.Push({rule->rank, left});
}

void BpeMerger::Apply(const BpeCandidate& candidate, uint64_t* steps) {
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
  symbols_.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    symbols_.push_back({ids[i], i == 0 ? kNone : i - 1, i + 1 == count ? kNone : i + 1});
  }
  for (uint32_t i = 0; i + 1 < count; ++i) Consider(i, steps);
  while (!queue_.empty()) {
    ++*steps;
    Apply(queue_.Pop(), steps);
  }
  // Symbol 0 is never merged into another: it is the head of the list.
  for (uint32_t i = 0; i != kNone; i = symbols_[i].next) output->push_back(symbols_[i].id);
}

}  // namespace kvern
