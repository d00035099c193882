#include "worker/engine/local_port.h"

#include <chrono>
#include <utility>

namespace kvern {

void LocalPort::Push(Commands commands) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(commands));
  arrived_.notify_one();
}

void LocalPort::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  arrived_.notify_one();
}

absl::Status LocalPort::Receive(Duration timeout, std::vector<Commands>& commands) {
  std::unique_lock lock(mutex_);
  arrived_.wait_for(lock, std::chrono::nanoseconds(timeout),
                    [this] { return closed_ || !waiting_.empty(); });
  if (closed_) return Unavailable("the router has closed the group's port");
  for (Commands& each : waiting_) commands.push_back(std::move(each));
  waiting_.clear();
  return absl::OkStatus();
}

absl::Status LocalPort::Send(const StepReport& report) {
  sink_(report);
  return absl::OkStatus();
}

absl::Status LocalPort::Send(const Leave& leave) {
  sink_(leave);
  return absl::OkStatus();
}

}  // namespace kvern
