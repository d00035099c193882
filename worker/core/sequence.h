// What the scheduler knows of a request and of its choices while they run.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "schemas/messages.h"

namespace kvern {

struct Request;

// One choice of one request that is not over.
struct Sequence {
  Request* request = nullptr;
  uint32_t choice = 0;
  std::optional<Slot> slot;    // set once a plan has told the ranks of it
  std::vector<BlockId> table;  // blocks of tokens [0, table.size() * kBlockSize)
  uint32_t announced = 0;      // leading entries of `table` that the ranks have
  uint32_t output = 0;         // tokens of the choice so far, earlier epochs included
  uint32_t computed = 0;       // leading tokens whose keys and values the ranks have computed
  bool decoding = false;       // has drawn a token in this epoch
  bool tail_settled = false;   // see Request::ends_on_block

  uint32_t length() const;  // known tokens: prompt and output
  uint32_t remaining() const { return length() - computed; }
};

struct Request {
  Dispatch dispatch;
  uint64_t reserved = 0;  // blocks, by BlocksNeeded
  bool forked = false;    // every live choice has its own slot; with n = 1 from the start
  std::vector<std::unique_ptr<Sequence>>
      live;  // ascending choices; before the fork only the first runs

  uint32_t prompt_tokens() const { return static_cast<uint32_t>(dispatch.prompt.size()); }

  // The prompt is computed once up to its last token; each choice then runs that token itself, so
  // that all draw from the same logits. When the prompt fills its last block, that token lies in a
  // block which the block formula counts once for all choices, yet no two rows of a step may write
  // one block. So each choice writes a copy of its own first, and gives it back for its sibling's
  // as soon as both are complete (Sequence::tail_settled); until then no choice holds a block after
  // it that the formula has not counted.
  bool ends_on_block() const { return dispatch.n > 1 && prompt_tokens() % kBlockSize == 0; }
};

inline uint32_t Sequence::length() const { return request->prompt_tokens() + output; }

}  // namespace kvern
