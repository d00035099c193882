#include "router/core/wait_queue.h"

#include "cluster/base/check.h"

namespace kvern::router {

WaitQueue::WaitQueue(uint32_t max_entries, uint64_t max_bytes)
    : max_entries_(max_entries), max_bytes_(max_bytes), queue_(max_entries) {}

bool WaitQueue::HasRoom(uint64_t bytes) const {
  return entries_ < max_entries_ && bytes <= max_bytes_ - bytes_;
}

void WaitQueue::TakeRoom(Request& request, uint64_t bytes) {
  KVERN_CHECK(HasRoom(bytes));
  ++entries_;
  bytes_ += bytes;
  request.queue_bytes = bytes;
}

bool WaitQueue::ResizeRoom(Request& request, uint64_t bytes) {
  uint64_t others = bytes_ - request.queue_bytes;
  if (bytes > max_bytes_ - others) return false;
  bytes_ = others + bytes;
  request.queue_bytes = bytes;
  return true;
}

void WaitQueue::GiveRoomBack(Request& request) {
  KVERN_CHECK(entries_ > 0);
  KVERN_CHECK_LE(request.queue_bytes, bytes_);
  --entries_;
  bytes_ -= request.queue_bytes;
  request.queue_bytes = 0;
}

void WaitQueue::Push(Request& request) { queue_.PushBack(&request); }

Request& WaitQueue::PopFront() {
  Request& request = *queue_.PopFront();
  GiveRoomBack(request);
  return request;
}

void WaitQueue::Remove(Request& request) {
  queue_.RemoveAt(Position(request));
  GiveRoomBack(request);
}

size_t WaitQueue::Position(const Request& request) const {
  size_t position = 0;
  while (queue_[position] != &request) ++position;
  return position;
}

void WaitQueue::Audit() const {
  KVERN_CHECK_LE(queue_.size(), entries_);
  KVERN_CHECK_LE(entries_, max_entries_);
  KVERN_CHECK_LE(bytes_, max_bytes_);
  uint64_t queued_bytes = 0;
  for (size_t i = 0; i < queue_.size(); ++i) {
    KVERN_CHECK(queue_[i]->phase == Phase::kQueued) << "request " << queue_[i]->id.ToString();
    KVERN_CHECK(!queue_[i]->answered);
    queued_bytes += queue_[i]->queue_bytes;
  }
  KVERN_CHECK_LE(queued_bytes, bytes_);
}

}  // namespace kvern::router
