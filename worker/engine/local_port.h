// A leader's port for a router that lives in the same process.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

#include "worker/engine/leader_port.h"

namespace kvern {

class LocalPort : public LeaderPort {
 public:
  // `sink` takes the leader's messages, on the leader's thread.
  explicit LocalPort(std::function<void(WorkerToRouter)> sink) : sink_(std::move(sink)) {}

  // Any thread.
  void Push(Commands commands);
  // Any thread: the leader's next Receive fails with Unavailable.
  void Close();

  absl::Status Receive(Duration timeout, std::vector<Commands>& commands) override;
  absl::Status Send(const StepReport& report) override;
  absl::Status Send(const Leave& leave) override;

 private:
  std::function<void(WorkerToRouter)> sink_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<Commands> waiting_;  // bounded by what the router has admitted
  bool closed_ = false;
};

}  // namespace kvern
