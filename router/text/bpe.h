// Byte-pair merges over token ids: the best-ranked pair first, leftmost among equals.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace kvern {

// The merge rules. Immutable after construction, so any number of threads may merge with it.
class BpeMerges {
 public:
  struct Rule {
    uint32_t rank;
    uint32_t merged;  // The id that replaces the pair.
  };

  void Reserve(size_t rules) { rules_.reserve(rules); }
  // False if the pair already has a rule.
  bool Add(uint32_t left, uint32_t right, Rule rule) {
    return rules_.emplace(Key(left, right), rule).second;
  }

  // nullptr: the pair does not merge.
  const Rule* Find(uint32_t left, uint32_t right) const {
    auto it = rules_.find(Key(left, right));
    return it == rules_.end() ? nullptr : &it->second;
  }

 private:
  static uint64_t Key(uint32_t left, uint32_t right) { return uint64_t{left} << 32 | right; }

  absl::flat_hash_map<uint64_t, Rule> rules_;
};

// A pair that may merge. Ordered by rank, then from left to right.
struct BpeCandidate {
  uint32_t rank;
  uint32_t left;  // Index of the pair's left symbol.

  bool operator<(const BpeCandidate& other) const {
    return rank != other.rank ? rank < other.rank : left < other.left;
  }
};

// A priority queue that is cheap when candidates come in order, as they do in long stretches of one
// kind of text: whatever continues one of a few ascending runs waits there, and only the rest goes
// through a heap. O(log n) a candidate at worst.
class BpeQueue {
 public:
  bool empty() const;
  void Push(const BpeCandidate& candidate);
  // The least. REQUIRES: not empty.
  BpeCandidate Pop();

 private:
  struct Run {
    std::vector<BpeCandidate> candidates;  // Ascending; those before `next` are gone.
    size_t next = 0;

    bool empty() const { return next == candidates.size(); }
  };

  static constexpr size_t kRuns = 4;

  std::array<Run, kRuns> runs_;
  std::vector<BpeCandidate> heap_;  // std::push_heap with the least on top.
};

// The memory of merging, reused from part to part. Not thread-safe: one per encoding thread.
class BpeMerger {
 public:
  // `merges` must outlive this.
  explicit BpeMerger(const BpeMerges* merges) : merges_(merges) {}

  // Merges `ids` until no rule applies and appends the result to `output`. O(n log n) for n ids,
  // 36 n bytes of memory at most. Adds pair look-ups and queue operations to `steps`, at most 9 n:
  // to the n - 1 first pairs each of the at most n - 1 merges adds two, and a pair is looked up,
  // pushed and popped once. REQUIRES: fewer than 2^32 - 2 ids.
  void Merge(std::span<const uint32_t> ids, std::vector<uint32_t>* output, uint64_t* steps);

 private:
  struct Symbol {
    uint32_t id;
    uint32_t previous;  // Index, or kNone.
    uint32_t next;      // Index, or kNone; kDead in a symbol that was merged into its left one.
  };

  // Pushes the pair that begins at `left`, if a rule merges it.
  void Consider(uint32_t left, uint64_t* steps);
  // Applies the rule of the candidate unless the pair has changed since it was pushed.
  void Apply(const BpeCandidate& candidate, uint64_t* steps);

  const BpeMerges* merges_;
  std::vector<Symbol> symbols_;
  BpeQueue queue_;
};

}  // namespace kvern
