// The ranks of one group as one unit of failure: started together, killed together, restarted
// together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/rng.h"
#include "cluster/base/time.h"
#include "cluster/launch/child_output.h"
#include "cluster/launch/child_process.h"
#include "cluster/launch/launch_config.h"

namespace kvern {

// When a group that died starts again. Pure: times are arguments.
class RestartPolicy {
 public:
  static constexpr Duration kFirstBackoff = 100 * kMillisecond;
  static constexpr Duration kLongestBackoff = 10 * kSecond;
  // A life this long was a life: the next death counts as the first.
  static constexpr Duration kLongLife = 30 * kSecond;

  // The group lived from `started` to `now`; returns when to start it again.
  Time NextStart(Time started, Time now);
  // Deaths in a row, each before kLongLife.
  int quick_deaths() const { return quick_deaths_; }

 private:
  int quick_deaths_ = 0;
};

// One rank of one start.
struct Rank {
  ChildProcess process;
  ChildOutput output;
  bool output_open = true;
  bool killed_by_us = false;
};

// Why a group died: the rank that began it.
struct GroupDeath {
  int64_t rank = 0;
  ExitStatus exit;
  std::string reason;  // that rank's first error, or how it ended if it said nothing
};

class Group {
 public:
  enum class State { kWaiting, kRunning, kDying, kLeft };

  // The index-th group of this host.
  explicit Group(int64_t index) : index_(index), name_(GroupName(index)) {}

  const std::string& name() const { return name_; }
  State state() const { return state_; }
  uint64_t incarnation() const { return incarnation_; }
  std::vector<Rank>& ranks() { return ranks_; }
  const std::vector<Rank>& ranks() const { return ranks_; }
  // Why it died, where that was told already; empty otherwise. Of this start.
  const std::string& told() const { return told_; }
  void set_told(std::string reason) { told_ = std::move(reason); }
  // Waiting: when to start.
  Time start_at() const { return start_at_; }
  int quick_deaths() const { return policy_.quick_deaths(); }

  // Spawns all ranks. On an error those already spawned are gone again, and the group waits as
  // after a death.
  absl::Status Start(const LaunchConfig& config, const std::string& worker_endpoint,
                     uint64_t incarnation, Time now);

  // SIGKILL to every rank that still runs.
  void Kill();

  // A rank has joined the router, which from now on says who stays away: it counts as hung no more
  // for nobody having joined in time.
  void HeardOf() { join_by_ = kTimeMax; }

  // The router has given this start up. Ranks that hear of it end by themselves, with their own
  // words; those that hang do not. REQUIRES: running.
  void GiveUp(std::string reason, Time now);
  // When a group that was given up, of which no rank joined, or whose ranks leave, counts as hung;
  // kTimeMax: none of these.
  Time hung_at() const {
    return state_ == State::kRunning ? std::min(hung_at_, join_by_) : kTimeMax;
  }
  // From hung_at on: the group's death begins. REQUIRES: hung_at is set. Returns why it should have
  // ended.
  const std::string& KillHung();

  // Collects ranks that ended. A clean exit is a leave: the router had the group drained, and the
  // other ranks leave too; with `comes_back` they count as hung if they take long. Any other exit
  // is the group's death. Returns the death at the moment it begins, when all other ranks have just
  // been killed.
  std::optional<GroupDeath> Reap(bool comes_back, Time now);

  // True once every rank has ended and what it said was read.
  bool AllGone() const;

  // REQUIRES: AllGone. The death again, now that every rank's words are read: the rank with the
  // earliest error among those that ended by themselves. Then the group waits for its next start.
  GroupDeath Bury(Time now);
  // REQUIRES: AllGone. The group is not started again.
  void Leave() { state_ = State::kLeft; }
  // REQUIRES: AllGone, running: all ranks have left. The group waits for its next start, which is
  // soon: to leave is not to die.
  void Return(Time now);

 private:
  GroupDeath DeathOf(size_t rank) const;

  int64_t index_;
  std::string name_;
  State state_ = State::kWaiting;
  uint64_t incarnation_ = 0;
  std::vector<Rank> ranks_;
  std::string told_;
  Time started_ = 0;
  Time start_at_ = 0;
  size_t first_dead_ = 0;
  Time hung_at_ = kTimeMax;
  Time join_by_ = kTimeMax;  // the first rank; kTimeMax: it has
  bool unheard_ = false;     // killed because none joined
  bool leaves_ = false;      // hung_at_ is set because a rank has left
  std::string hung_reason_;  // why it should have ended by hung_at_
  RestartPolicy policy_;
};

}  // namespace kvern
