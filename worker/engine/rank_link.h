// A rank's connection to the router: joining, and for the leader commands and reports.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cluster/net/connection_watch.h"
#include "cluster/net/poller.h"
#include "cluster/net/socket.h"
#include "worker/engine/leader_port.h"

namespace kvern {

// Belongs to the rank's thread. A connection that broke may have lost messages, so it is never used
// again: the group ends, and whoever started it starts it anew.
class RankLink : public LeaderPort {
 public:
  // Returns before the connection stands.
  static absl::StatusOr<std::unique_ptr<RankLink>> Connect(const std::string& endpoint);

  absl::Status SendJoin(const Join& join);

  // Waits for the router to start the group. DeadlineExceeded after `timeout`, FailedPrecondition
  // with the router's reason when it refuses this rank, Unavailable when the connection broke.
  absl::StatusOr<GroupStart> AwaitStart(Duration timeout);

  absl::Status Receive(Duration timeout, std::vector<Commands>& commands) override;
  absl::Status Send(const StepReport& report) override;
  absl::Status Send(const Leave& leave) override;

  // After this start of the group, from now on: when the process is told to end (LeaveSignal), the
  // router is told once that the group is to be drained, by the next Receive or SayIfToldToLeave.
  // REQUIRES: LeaveSignal::Install.
  void PassOnLeaveSignal(Incarnation group_incarnation);
  void SayIfToldToLeave();

  // The router went away, or the way to it.
  bool broken() const { return broken_; }

 private:
  RankLink(std::string endpoint, std::unique_ptr<NetContext> context, DealerSocket socket)
      : endpoint_(std::move(endpoint)), context_(std::move(context)), socket_(std::move(socket)) {}

  absl::Status SendMessage(const WorkerToRouter& message);
  // The next message if one is there.
  absl::StatusOr<bool> Next(RouterToWorker& message);
  absl::Status Wait(Duration timeout);

  std::string endpoint_;
  std::unique_ptr<NetContext> context_;
  DealerSocket socket_;
  Incarnation incarnation_ = 0;  // of this process
  std::unique_ptr<ConnectionWatch> watch_;
  bool broken_ = false;
  bool passes_on_leave_ = false;  // and has not yet
  Incarnation group_incarnation_ = 0;
};

}  // namespace kvern
