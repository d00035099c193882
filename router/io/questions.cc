#include "router/io/questions.h"

#include <chrono>

namespace kvern {
namespace {

constexpr std::chrono::seconds kPatience(1);

absl::Status Closed() { return Unavailable("the router is stopping"); }

template <typename Answer>
Answer Await(std::future<Answer> future) {
  if (future.wait_for(kPatience) != std::future_status::ready) {
    return Unavailable("the router's loop did not answer within a second");
  }
  return future.get();
}

}  // namespace

absl::StatusOr<std::shared_ptr<const StatusSnapshot>> Questions::Snapshot() {
  std::future<SnapshotAnswer> future;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Closed();
    future = snapshots_.emplace_back().get_future();
  }
  wake_->Notify();
  return Await(std::move(future));
}

absl::StatusOr<RequestStatus> Questions::Find(const RequestId& id) {
  std::future<absl::StatusOr<RequestStatus>> future;
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Closed();
    finds_.push_back({id, {}});
    future = finds_.back().answer.get_future();
  }
  wake_->Notify();
  return Await(std::move(future));
}

void Questions::Answer(const std::function<StatusSnapshot()>& snapshot,
                       const std::function<absl::StatusOr<RequestStatus>(const RequestId&)>& find) {
  std::vector<std::promise<SnapshotAnswer>> snapshots;
  std::vector<FindQuestion> finds;
  {
    std::lock_guard lock(mutex_);
    snapshots.swap(snapshots_);
    finds.swap(finds_);
  }
  if (!snapshots.empty()) {
    auto shared = std::make_shared<const StatusSnapshot>(snapshot());
    for (auto& question : snapshots) question.set_value(shared);
  }
  for (FindQuestion& question : finds) question.answer.set_value(find(question.id));
}

void Questions::Close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  for (auto& question : snapshots_) question.set_value(Closed());
  for (FindQuestion& question : finds_) question.answer.set_value(Closed());
  snapshots_.clear();
  finds_.clear();
}

}  // namespace kvern
