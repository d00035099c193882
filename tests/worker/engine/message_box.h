// Where a test waits for the messages of a leader on another thread.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "schemas/worker_messages.h"

namespace kvern {

class MessageBox {
 public:
  void Put(WorkerToRouter message) {
    std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
    arrived_.notify_all();
  }

  // Waits for the next message.
  WorkerToRouter Take() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !messages_.empty(); });
    WorkerToRouter message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }

  // Waits for the first report that `wanted` accepts and drops those before it.
  StepReport TakeReportWhere(const std::function<bool(const StepReport&)>& wanted) {
    while (true) {
      WorkerToRouter message = Take();
      auto* report = std::get_if<StepReport>(&message);
      if (report != nullptr && wanted(*report)) return std::move(*report);
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<WorkerToRouter> messages_;
};

}  // namespace kvern
