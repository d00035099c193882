#include "cluster/launch/group.h"

#include <signal.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"

namespace kvern {
namespace {

// Hearing that the group is given up and ending takes a rank no longer than its step, as a rule.
constexpr Duration kEndGrace = 2 * kSecond;
// From the first rank that leaves to the last: a GPU's memory takes a while to be given back.
constexpr Duration kLeaveGrace = 5 * kSecond;

}  // namespace

Time RestartPolicy::NextStart(Time started, Time now) {
  if (now - started >= kLongLife) quick_deaths_ = 0;
  ++quick_deaths_;
  // 100 ms doubles to more than 10 s in seven steps.
  Duration backoff = kFirstBackoff << std::min(quick_deaths_ - 1, 7);
  return now + std::min(backoff, kLongestBackoff);
}

absl::Status Group::Start(const LaunchConfig& config, const std::string& worker_endpoint,
                          uint64_t incarnation, Time now) {
  KVERN_CHECK(state_ == State::kWaiting) << name_;
  incarnation_ = incarnation;
  started_ = now;
  hung_at_ = kTimeMax;
  join_by_ = config.join_timeout > 0 ? now + config.join_timeout : kTimeMax;
  leaves_ = unheard_ = false;
  told_.clear();
  ranks_.clear();
  for (int64_t rank = 0; rank < config.tp; ++rank) {
    absl::StatusOr<ChildProcess> child = ChildProcess::Spawn(
        WorkerArguments(config, {name_, incarnation, rank, index_}, worker_endpoint));
    if (!child.ok()) {
      ranks_.clear();
      start_at_ = policy_.NextStart(now, now);
      return child.status();
    }
    ranks_.push_back({std::move(*child), {}});
  }
  state_ = State::kRunning;
  return absl::OkStatus();
}

void Group::Kill() {
  for (Rank& rank : ranks_) {
    if (!rank.process.running()) continue;
    rank.killed_by_us = true;
    rank.process.Signal(SIGKILL);
  }
}

void Group::GiveUp(std::string reason, Time now) {
  KVERN_CHECK(state_ == State::kRunning) << name_;
  if (hung_at_ != kTimeMax) return;
  hung_at_ = now + kEndGrace;
  hung_reason_ = std::move(reason);
}

const std::string& Group::KillHung() {
  KVERN_CHECK(hung_at() != kTimeMax) << name_;
  state_ = State::kDying;
  unheard_ = join_by_ < hung_at_;
  if (unheard_) {
    hung_reason_ = absl::StrCat("no rank has joined the router within ",
                                (join_by_ - started_) / kSecond, " s (--join-timeout)");
  }
  auto runs = [](const Rank& rank) { return rank.process.running(); };
  auto hung = std::ranges::find_if(ranks_, runs);
  first_dead_ = hung == ranks_.end() ? 0 : static_cast<size_t>(hung - ranks_.begin());
  Kill();
  return hung_reason_;
}

std::optional<GroupDeath> Group::Reap(bool comes_back, Time now) {
  std::optional<GroupDeath> death;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    Rank& rank = ranks_[i];
    if (!rank.process.running() || !rank.process.Reap()) continue;
    if (state_ != State::kRunning) continue;
    if (rank.process.exit()->Clean()) {
      if (!comes_back || hung_at_ != kTimeMax) continue;
      leaves_ = true;
      hung_at_ = now + kLeaveGrace;
      hung_reason_ = absl::StrCat("rank ", i, " left, others did not");
      continue;
    }
    state_ = State::kDying;
    first_dead_ = i;
    death = DeathOf(i);
  }
  // Not in the loop: ranks that ended by themselves in this same turn are not ours.
  if (death.has_value()) Kill();
  return death;
}

bool Group::AllGone() const {
  return std::all_of(ranks_.begin(), ranks_.end(),
                     [](const Rank& rank) { return !rank.process.running() && !rank.output_open; });
}

GroupDeath Group::DeathOf(size_t rank) const {
  const Rank& dead = ranks_[rank];
  ExitStatus exit = *dead.process.exit();
  return {static_cast<int64_t>(rank), exit, DeathReason(exit, dead.output)};
}

GroupDeath Group::Bury(Time now) {
  KVERN_CHECK(AllGone()) << name_;
  size_t culprit = first_dead_;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (ranks_[i].killed_by_us) continue;
    if (ranks_[i].output.first_error_time() < ranks_[culprit].output.first_error_time())
      culprit = i;
  }
  GroupDeath death = DeathOf(culprit);
  // Only hung ranks leave nobody but us as the culprit.
  if (ranks_[culprit].killed_by_us) {
    death.reason = (leaves_ || unheard_ ? "" : "the router gave it up: ") + hung_reason_;
  }
  state_ = State::kWaiting;
  // However long nobody was heard of, that was no life.
  start_at_ = policy_.NextStart(unheard_ ? now : started_, now);
  return death;
}

void Group::Return(Time now) {
  KVERN_CHECK(AllGone() && state_ == State::kRunning) << name_;
  state_ = State::kWaiting;
  start_at_ = now + RestartPolicy::kFirstBackoff;
}

}  // namespace kvern
