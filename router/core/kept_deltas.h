// What a stream has produced and its reader has no credit for yet.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cluster/base/ring.h"
#include "schemas/messages.h"

namespace kvern::router {

// Bytes that a delta holds in memory, its strings and lists included; in a message it takes fewer.
uint64_t BytesOf(const Delta& delta);

// In order of production. Deltas of one choice grow together into chunks of at most `max_chunk`
// tokens that fit into one message, so that what comes one token at a time does not cost a message
// for each. A chunk may be newer than one of another choice that was begun after it; within a
// choice the order is kept.
class KeptDeltas {
 public:
  // `max_deltas`: more than can ever come, at most one per token and choice's end.
  KeptDeltas(size_t max_deltas, uint64_t max_chunk) : max_chunk_(max_chunk), deltas_(max_deltas) {}

  void Add(Delta delta);

  bool empty() const { return deltas_.empty(); }
  const Delta& front() const { return deltas_.front(); }
  Delta PopFront();

  size_t size() const { return deltas_.size(); }
  uint64_t bytes() const { return bytes_; }
  const Delta& at(size_t i) const { return deltas_[i]; }

 private:
  uint64_t max_chunk_;
  Ring<Delta> deltas_;
  uint64_t bytes_ = 0;
};

}  // namespace kvern::router
