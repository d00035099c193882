// What the scheduler knows of a request and of its choices while they run.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "schemas/messages.h"

namespace kvern {

struct Request;

// One choice of one request. One that is over while plans in flight have rows of it is kept until
// they are committed, with a null `request`.
struct Sequence {
  Request* request = nullptr;
  uint32_t choice = 0;
  std::optional<Slot> slot;      // set once a plan has told the ranks of it
  std::vector<BlockId> table;    // blocks of tokens [0, table.size() * kBlockSize)
  uint32_t announced = 0;        // leading entries of `table` that the ranks have
  std::vector<uint32_t> output;  // tokens of the choice so far, earlier epochs included
  uint32_t drawing = 0;          // tokens after those: plans in flight draw them
  uint32_t computed = 0;         // leading tokens whose keys and values plans have computed
  uint32_t lost = 0;             // leading tokens that were computed once and then preempted
  bool decoding = false;         // draws tokens since it last got its blocks
  bool tail_settled = false;     // see Request::ends_on_block

  uint32_t length() const;  // tokens: prompt, output and those that are being drawn
  uint32_t remaining() const { return length() - computed; }
  // Its last token is being drawn: nothing is left to plan.
  bool exhausted() const;
};

struct Request {
  // What each token of it needs, together with what comes first in `dispatch`.
  static constexpr size_t kHotBytes = 320;

  uint64_t ending = 0;      // EndingBits (admission.h)
  uint64_t age = 0;         // in order of acceptance: the smallest is the oldest
  uint64_t reserved = 0;    // worst case in blocks, by BlocksNeeded
  bool guaranteed = false;  // by its class, or because it was preempted often enough
  bool started = false;     // has blocks, or their promise; else it waits
  uint64_t committed = 0;   // blocks that nobody else can take, held or not; 0 while it waits
  uint64_t held = 0;        // blocks in its tables, each counted once
  uint32_t preemptions = 0;
  bool forked = false;  // every live choice has its own slot; with n = 1 from the start
  // Ascending choices; before the fork only the first runs.
  absl::InlinedVector<std::unique_ptr<Sequence>, 1> live;
  Dispatch dispatch;  // `emitted` is moved to the sequences

  // False: the token, a choice's `output`-th, is known not to be its last.
  bool MayEnd(uint32_t token, size_t output) const {
    return (ending >> (token % 64) & 1) != 0 || output >= dispatch.sampling.max_tokens;
  }

  uint32_t prompt_tokens() const { return static_cast<uint32_t>(dispatch.prompt.size()); }

  // The blocks with which every live choice can compute all its tokens, and a choice that has not
  // drawn yet the token after them too (so that a start is worth its prefill). Never more than
  // `reserved`: a choice that is not exhausted has fewer than max_tokens tokens.
  uint64_t BlocksToGoOn() const {
    uint64_t shared = prompt_tokens() / kBlockSize;
    uint64_t own = 0;
    bool any = false;
    for (const std::unique_ptr<Sequence>& sequence : live) {
      if (sequence->exhausted()) continue;
      any = true;
      uint64_t tokens = uint64_t{sequence->length()} + (sequence->decoding ? 0 : 1);
      own += (tokens + kBlockSize - 1) / kBlockSize - shared;
    }
    return any ? shared + own : 0;
  }

  // Tokens that must be computed again if the request loses its blocks.
  uint64_t TokensToRedo() const {
    if (!forked) return live[0]->computed;
    uint64_t tokens = 0;
    uint64_t choices = 0;
    for (const std::unique_ptr<Sequence>& sequence : live) {
      if (sequence->exhausted()) continue;
      tokens += sequence->computed;
      ++choices;
    }
    // Their common prefix is computed once.
    return choices == 0 ? 0 : tokens - (choices - 1) * (prompt_tokens() - 1);
  }

  // Something is left to plan.
  bool runnable() const {
    return std::any_of(live.begin(), live.end(),
                       [](const auto& sequence) { return !sequence->exhausted(); });
  }

  // Plans in flight draw tokens of it: what it has said is not all known.
  bool drawing() const {
    for (const std::unique_ptr<Sequence>& sequence : live) {
      if (sequence->drawing > 0) return true;
    }
    return false;
  }

  // The prompt is computed once up to its last token; each choice then runs that token itself, so
  // that all draw from the same logits. When the prompt fills its last block, that token lies in a
  // block which the block formula counts once for all choices, yet no two rows of a step may write
  // one block. So each choice writes a copy of its own first, and gives it back for its sibling's
  // as soon as both are complete (Sequence::tail_settled); until then no choice holds a block after
  // it that the formula has not counted.
  bool ends_on_block() const { return dispatch.n > 1 && prompt_tokens() % kBlockSize == 0; }
};

inline uint32_t Sequence::length() const {
  return request->prompt_tokens() + static_cast<uint32_t>(output.size()) + drawing;
}

inline bool Sequence::exhausted() const {
  return drawing > 0 && output.size() + drawing >= request->dispatch.sampling.max_tokens;
}

}  // namespace kvern
