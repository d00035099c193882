// Requests that wait: a FIFO bounded in entries and bytes. Room is taken before any work is done on
// a request (tokenising) and given back once, when it is dispatched or ends.
#pragma once

#include <cstdint>

#include "cluster/base/ring.h"
#include "router/core/request.h"

namespace kvern::router {

// Invariants: queued requests <= entries() <= max_entries; bytes() <= max_bytes.
class WaitQueue {
 public:
  WaitQueue(uint32_t max_entries, uint64_t max_bytes);

  // Room for one more request whose input has `bytes`?
  bool HasRoom(uint64_t bytes) const;

  // REQUIRES: HasRoom(bytes). Sets request.queue_bytes.
  void TakeRoom(Request& request, uint64_t bytes);
  // The input has become `bytes` long. False, and nothing changes, if that is beyond the bound.
  bool ResizeRoom(Request& request, uint64_t bytes);
  void GiveRoomBack(Request& request);

  // Lines up a request that has its room.
  void Push(Request& request);
  Request& front() { return *queue_.front(); }
  Request& at(size_t position) { return *queue_[position]; }
  // Takes the oldest out of the line and gives its room back.
  Request& PopFront();
  // Likewise for one in the middle. O(size).
  void Remove(Request& request);
  // How many are ahead of it. REQUIRES: it is in the line.
  size_t Position(const Request& request) const;

  size_t size() const { return queue_.size(); }  // in line
  bool empty() const { return queue_.empty(); }
  uint32_t entries() const { return entries_; }  // in line or being tokenised
  uint64_t bytes() const { return bytes_; }

  // Dies if an invariant is broken.
  void Audit() const;

 private:
  uint32_t max_entries_;
  uint64_t max_bytes_;
  uint32_t entries_ = 0;
  uint64_t bytes_ = 0;
  Ring<Request*> queue_;
};

}  // namespace kvern::router
