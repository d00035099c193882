#include "cluster/net/poller.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cluster/base/check.h"

namespace kvern {

absl::StatusOr<WakeUp> WakeUp::Create() {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus("eventfd", errno);
  return WakeUp(fd);
}

WakeUp::~WakeUp() {
  if (fd_ >= 0) close(fd_);
}

void WakeUp::Notify() const {
  uint64_t one = 1;
  // EAGAIN: the counter is full, so the waiter is notified already.
  [[maybe_unused]] ssize_t written = write(fd_, &one, sizeof(one));
}

void WakeUp::Clear() const {
  uint64_t count = 0;
  [[maybe_unused]] ssize_t taken = read(fd_, &count, sizeof(count));
}

size_t Poller::Add(const Socket& socket) {
  items_.push_back({socket.handle(), 0, ZMQ_POLLIN, 0});
  return items_.size() - 1;
}

size_t Poller::AddFd(int fd) {
  items_.push_back({nullptr, fd, ZMQ_POLLIN, 0});
  return items_.size() - 1;
}

absl::Status Poller::Wait(Duration timeout) {
  // A day at most: far below what overflows, and nobody notices the extra turn.
  constexpr Duration kLongest = 86'400 * kSecond;
  KVERN_CHECK(timeout >= 0);
  long milliseconds = -1;
  if (timeout != kTimeMax) {
    milliseconds = (std::min(timeout, kLongest) + kMillisecond - 1) / kMillisecond;
  }
  int ready = zmq_poll(items_.data(), static_cast<int>(items_.size()), milliseconds);
  if (ready >= 0) return absl::OkStatus();
  for (zmq_pollitem_t& item : items_) item.revents = 0;
  if (zmq_errno() == EINTR) return absl::OkStatus();
  return Unavailable("zmq_poll: ", zmq_strerror(zmq_errno()));
}

}  // namespace kvern
