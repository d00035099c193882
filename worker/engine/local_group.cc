#include "worker/engine/local_group.h"

#include <utility>

#include "cluster/base/threads.h"
#include "worker/comm/local.h"

namespace kvern {

LocalGroup::LocalGroup(std::shared_ptr<const Checkpoint> checkpoint, const RankConfig& config,
                       MessageSink sink, EndSink ended)
    : checkpoint_(std::move(checkpoint)),
      config_(config),
      port_(std::move(sink)),
      ended_(std::move(ended)),
      joins_(config.world) {
  config_.graphs = config.graphs && (config.gpu == nullptr || config.world == 1);
}

absl::StatusOr<std::unique_ptr<LocalGroup>> LocalGroup::Open(
    std::shared_ptr<const Checkpoint> checkpoint, const RankConfig& config, MessageSink sink,
    EndSink ended) {
  std::unique_ptr<LocalGroup> group(
      new LocalGroup(std::move(checkpoint), config, std::move(sink), std::move(ended)));
  std::vector<std::unique_ptr<Communicator>> comms = NewLocalGroup(static_cast<int>(config.world));
  for (size_t rank = 0; rank < config.world; ++rank) {
    KVERN_ASSIGN_OR_RETURN(
        std::thread thread,
        StartThread([self = group.get(), rank, comm = std::move(comms[rank])]() mutable {
          self->RunRank(rank, std::move(comm));
        }));
    group->threads_.push_back(std::move(thread));
  }
  KVERN_RETURN_IF_ERROR(group->AwaitAllOpened());
  return group;
}

LocalGroup::~LocalGroup() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  port_.Close();
  for (std::thread& thread : threads_) thread.join();
}

absl::Status LocalGroup::AwaitAllOpened() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return opened_ == joins_.size(); });
  return first_error_;
}

void LocalGroup::Start(const GroupStart& start) {
  std::lock_guard lock(mutex_);
  start_ = start;
  changed_.notify_all();
}

void LocalGroup::RunRank(size_t index, std::unique_ptr<Communicator> comm) {
  RankConfig config = config_;
  config.rank = static_cast<uint32_t>(index);
  absl::StatusOr<std::unique_ptr<Rank>> rank = Rank::Open(*checkpoint_, config);
  Opened(index, rank);
  if (!rank.ok()) return;
  std::optional<GroupStart> start = AwaitStart();
  if (!start) return;
  constexpr Duration kTimeout = 30 * kSecond;
  absl::Status status = (*rank)->SetCommunicator(std::move(comm), start->comm_id, kTimeout);
  if (status.ok()) status = (*rank)->Run(*start, index == 0 ? &port_ : nullptr);
  Ended(status);
}

void LocalGroup::Opened(size_t index, const absl::StatusOr<std::unique_ptr<Rank>>& opened) {
  std::lock_guard lock(mutex_);
  if (opened.ok()) {
    joins_[index] = (*opened)->join();
  } else if (first_error_.ok()) {
    first_error_ = opened.status();
  }
  ++opened_;
  changed_.notify_all();
}

std::optional<GroupStart> LocalGroup::AwaitStart() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return stop_ || start_; });
  return stop_ ? std::nullopt : start_;
}

void LocalGroup::Ended(const absl::Status& status) {
  std::unique_lock lock(mutex_);
  // Unavailable is what the others say of a rank that failed; its own words are the cause.
  const bool better = absl::IsUnavailable(first_error_) && !absl::IsUnavailable(status);
  if (!status.ok() && (first_error_.ok() || better)) first_error_ = status;
  if (++over_ < joins_.size()) return;
  absl::Status result = first_error_;
  lock.unlock();
  ended_(result);
}

}  // namespace kvern
