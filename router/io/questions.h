// The status server's questions to the router's loop: asked on one thread, answered on another.
#pragma once

#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "cluster/base/time.h"
#include "cluster/net/poller.h"
#include "router/io/status_pages.h"

namespace kvern {

// Thread-safe. Holds as many questions as there are connections to the status server.
class Questions : public StatusSource {
 public:
  // `wake` is notified when a question waits; it outlives this.
  explicit Questions(const WakeUp* wake) : wake_(wake) {}
  ~Questions() override { Close(); }

  // ---- Any thread: waits for the loop, at most a second.
  absl::StatusOr<std::shared_ptr<const StatusSnapshot>> Snapshot() override;
  absl::StatusOr<RequestStatus> Find(const RequestId& id) override;

  // ---- The loop's thread.
  // Answers all that waits; `snapshot` is called once at most.
  void Answer(const std::function<StatusSnapshot()>& snapshot,
              const std::function<absl::StatusOr<RequestStatus>(const RequestId&)>& find);
  // From now on every question is answered with Unavailable.
  void Close();

 private:
  using SnapshotAnswer = absl::StatusOr<std::shared_ptr<const StatusSnapshot>>;
  struct FindQuestion {
    RequestId id;
    std::promise<absl::StatusOr<RequestStatus>> answer;
  };

  const WakeUp* const wake_;
  std::mutex mutex_;
  bool closed_ = false;  // guarded by mutex_, as are:
  std::vector<std::promise<SnapshotAnswer>> snapshots_;
  std::vector<FindQuestion> finds_;
};

}  // namespace kvern
