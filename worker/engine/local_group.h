// A whole group in one process: each rank is a thread.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "cluster/base/status.h"
#include "schemas/files/checkpoint.h"
#include "worker/engine/local_port.h"
#include "worker/engine/rank.h"

namespace kvern {

// Owned and called by one thread.
class LocalGroup {
 public:
  using MessageSink = std::function<void(WorkerToRouter)>;
  using EndSink = std::function<void(absl::Status)>;

  // Opens all ranks, in parallel; `config.rank` is ignored. `sink` takes the leader's messages on
  // the leader's thread, and `ended` is called once from some rank's thread when the group is over.
  static absl::StatusOr<std::unique_ptr<LocalGroup>> Open(
      std::shared_ptr<const Checkpoint> checkpoint, const RankConfig& config, MessageSink sink,
      EndSink ended);
  // Ends the group if it still runs.
  ~LocalGroup();

  // What each rank says to the router, by rank.
  const std::vector<Join>& joins() const { return joins_; }

  // Lets the ranks run. Call once.
  void Start(const GroupStart& start);

  // For the leader; any thread.
  void Push(Commands commands) { port_.Push(std::move(commands)); }

 private:
  LocalGroup(std::shared_ptr<const Checkpoint> checkpoint, const RankConfig& config,
             MessageSink sink, EndSink ended);

  void RunRank(size_t rank, std::unique_ptr<Communicator> comm);
  void Opened(size_t rank, const absl::StatusOr<std::unique_ptr<Rank>>& opened);
  // Waits for Start; nothing: the group ends without one.
  std::optional<GroupStart> AwaitStart();
  void Ended(const absl::Status& status);
  absl::Status AwaitAllOpened();

  std::shared_ptr<const Checkpoint> checkpoint_;
  RankConfig config_;
  LocalPort port_;
  EndSink ended_;
  std::vector<Join> joins_;

  std::mutex mutex_;
  std::condition_variable changed_;
  size_t opened_ = 0;  // ranks
  size_t over_ = 0;    // ranks
  absl::Status first_error_;
  std::optional<GroupStart> start_;
  bool stop_ = false;  // do not start any more
  std::vector<std::thread> threads_;
};

}  // namespace kvern
