#include "cluster/launch/supervisor.h"

#include <poll.h>
#include <signal.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"
#include "cluster/base/exit_codes.h"
#include "cluster/base/log.h"
#include "cluster/launch/announce.h"

namespace kvern {
namespace {

// Before all groups were live once, a group that is killed this often in a row ends the launch.
constexpr int kMaxFirstDeaths = 3;
// After the router has drained and left, its groups have left too; stragglers are killed.
constexpr Duration kLeaveGrace = 5 * kSecond;
// One Ctrl-C may arrive twice: from the terminal, and from a wrapper that passes it on.
constexpr Duration kSameSignal = 200 * kMillisecond;
// Without poll.
constexpr useconds_t kLookAgainMicros = 20'000;
constexpr Duration kFlushLimit = 2 * kSecond;

// Never 0, and 63 bits: on a command line it is a whole number like any other.
uint64_t DrawIncarnation() {
  uint64_t drawn = 0;
  while (drawn == 0) {
    KVERN_CHECK(getrandom(&drawn, sizeof(drawn), 0) == sizeof(drawn));
    drawn >>= 1;
  }
  return drawn;
}

// poll(2) rounds down to nothing what is less than a millisecond; waking early would spin.
int PollTimeout(Time now, Time deadline) {
  if (deadline == kTimeMax) return -1;
  Duration left = std::max<Duration>(0, deadline - now);
  return static_cast<int>(std::min<Duration>(left / kMillisecond + 1, 60'000));
}

}  // namespace

Supervisor::Supervisor(LaunchConfig config, int signals)
    : config_(std::move(config)),
      signals_(signals),
      ready_file_(config_.ready_file),
      outlet_(STDERR_FILENO) {
  for (int64_t i = 0; i < config_.replicas; ++i) groups_.emplace_back(i);
}

int Supervisor::Run() {
  StartRouter();
  while (!AllGone()) Turn();
  ready_file_.Remove();
  if (router_.has_value()) {
    const Voice voice = RouterVoice();
    router_->output().LetGo(voice.name, voice.told, voice.sink);
  }
  if (!last_words_.empty()) outlet_.Line("kvern-launch: ", last_words_);
  outlet_.Flush(kFlushLimit);
  return exit_code_;
}

void Supervisor::StartRouter() {
  router_gone_ = true;
  absl::Status ready_file = ready_file_.Check();
  if (!ready_file.ok()) return Fail("--ready-file", std::string(ready_file.message()));
  absl::StatusOr<RouterProcess> router = RouterProcess::Start(config_);
  if (!router.ok()) return Fail("router", std::string(router.status().message()));
  router_ = std::move(*router);
  router_gone_ = false;
}

void Supervisor::Turn() {
  std::vector<pollfd> polled;
  auto watch = [&](int fd, int16_t events) {
    if (fd >= 0) polled.push_back({fd, events, 0});
  };
  watch(signals_, POLLIN);
  if (outlet_.pending()) watch(outlet_.fd(), POLLOUT);
  if (router_.has_value()) {
    if (router_->process().running()) watch(router_->process().pidfd(), POLLIN);
    if (router_->output_open) watch(router_->process().output_fd(), POLLIN);
    watch(router_->ready_fd(), POLLIN);
  }
  for (Group& group : groups_) {
    for (Rank& rank : group.ranks()) {
      if (rank.process.running()) watch(rank.process.pidfd(), POLLIN);
      if (rank.output_open) watch(rank.process.output_fd(), POLLIN);
    }
  }
  int events = poll(polled.data(), polled.size(), PollTimeout(MonotonicNow(), NextDeadline()));
  // Memory may be short, or the limit of descriptors now below what is watched: then all are looked
  // at now and then.
  if (events < 0 && errno != EINTR) usleep(kLookAgainMicros);
  // Few descriptors, none blocks: looking at all of them is simpler than asking which was ready.
  OnSignal();
  OnRouter();
  for (Group& group : groups_) OnGroup(group);
  StartGroups();
  outlet_.Pump();
}

Time Supervisor::NextDeadline() const {
  Time next = phase_ == Phase::kDraining ? grace_until_ : kTimeMax;
  if (router_.has_value()) next = std::min(next, router_->output().held_until());
  for (const Group& group : groups_) {
    next = std::min(next, group.hung_at());
    for (const Rank& rank : group.ranks()) next = std::min(next, rank.output.held_until());
  }
  if (phase_ != Phase::kServing || link_ == nullptr) return next;
  for (const Group& group : groups_) {
    if (group.state() == Group::State::kWaiting) next = std::min(next, group.start_at());
  }
  return next;
}

void Supervisor::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_, &info, sizeof(info)) == static_cast<ssize_t>(sizeof(info))) {
    if (phase_ == Phase::kServing) {
      Drain();
    } else if (MonotonicNow() - draining_since_ >= kSameSignal) {
      Say(LogLevel::kWarning, "stopped_at_once", {{"signal", info.ssi_signo}});
      End(1);
      exit_code_ = 1;
    }
  }
}

void Supervisor::Drain() {
  phase_ = Phase::kDraining;
  draining_since_ = MonotonicNow();
  Say(LogLevel::kInfo, "draining", {});
  // Before all groups are live there may be ranks that the router cannot tell to leave.
  if (!ready_) return End(0);
  router_->process().PassOn(SIGTERM);
}

Supervisor::Voice Supervisor::RouterVoice() {
  return {"router", {last_words_}, [this](std::string_view line) { outlet_.Line("", line); }};
}

void Supervisor::ReadRouter() {
  ReadOutput(router_->process().output_fd(), router_->output(), router_->output_open,
             RouterVoice());
}

void Supervisor::OnRouter() {
  if (!router_.has_value()) return;
  ReadRouter();
  absl::Status ready = router_->ReadReady();
  if (!ready.ok()) Fail("router", std::string(ready.message()));
  OnStarts();
  if (phase_ == Phase::kServing && router_->addresses().has_value() && link_ == nullptr) {
    OnListening();
  }
  if (phase_ == Phase::kServing && router_->all_live() && !ready_) BecomeReady();
  if (!router_gone_ && router_->process().Reap()) {
    ReadRouter();
    OnRouterExit();
  }
  if (phase_ == Phase::kDraining && MonotonicNow() >= grace_until_) {
    Say(LogLevel::kWarning, "ranks_did_not_leave", {});
    End(0);
  }
}

void Supervisor::OnListening() {
  // Only now: a launch that cannot listen leaves no trace.
  absl::Status cleared = ready_file_.Clear();
  if (!cleared.ok()) return Fail("--ready-file", std::string(cleared.message()));
  absl::StatusOr<std::unique_ptr<RouterLink>> link =
      RouterLink::Connect(router_->addresses()->worker_endpoint, DrawIncarnation());
  if (!link.ok()) return Fail("router", std::string(link.status().message()));
  link_ = std::move(*link);
}

void Supervisor::OnRouterExit() {
  router_gone_ = true;
  ExitStatus exit = *router_->process().exit();
  if (phase_ == Phase::kDraining && exit.Clean()) {
    grace_until_ = MonotonicNow() + kLeaveGrace;
    return;
  }
  int code = !exit.signalled && exit.code == kUsageExit && !ready_ ? kUsageExit : 1;
  Fail("router", DeathReason(exit, router_->output()), code);
}

void Supervisor::BecomeReady() {
  ready_ = true;
  absl::Status announced = AnnounceReady(config_, *router_->addresses(), ready_file_);
  if (!announced.ok()) Fail("ready", std::string(announced.message()));
}

void Supervisor::StartGroups() {
  if (phase_ != Phase::kServing || link_ == nullptr) return;
  Time now = MonotonicNow();
  for (Group& group : groups_) {
    if (group.state() != Group::State::kWaiting || now < group.start_at()) continue;
    absl::Status started =
        group.Start(config_, router_->addresses()->worker_endpoint, DrawIncarnation(), now);
    if (started.ok()) continue;
    // Before all groups were live that is how this machine is; later it may be short of processes
    // or descriptors for a moment, and the other groups serve.
    if (!ready_) return Fail(group.name(), std::string(started.message()));
    Say(LogLevel::kError, "group_not_started",
        {{"group", group.name()}, {"reason", ToStd(started.message())}});
    SayRestart(group, "died");
  }
}

void Supervisor::OnGroup(Group& group) {
  if (group.state() == Group::State::kWaiting || group.state() == Group::State::kLeft) return;
  auto read_all = [&] {
    for (size_t i = 0; i < group.ranks().size(); ++i) {
      Rank& rank = group.ranks()[i];
      ReadOutput(rank.process.output_fd(), rank.output, rank.output_open, VoiceOf(group, i));
    }
  };
  read_all();
  KillHung(group);
  std::optional<GroupDeath> death = group.Reap(phase_ == Phase::kServing, MonotonicNow());
  read_all();  // What a rank said between the first reading and its end.
  if (death.has_value() && phase_ != Phase::kEnding) OnGroupDeath(group, *death);
  if (!group.AllGone()) return;
  OnGroupGone(group);
  LetGo(group);
}

void Supervisor::LetGo(Group& group) {
  for (size_t i = 0; i < group.ranks().size(); ++i) {
    const Voice voice = VoiceOf(group, i);
    group.ranks()[i].output.LetGo(voice.name, voice.told, voice.sink);
  }
}

Supervisor::Voice Supervisor::VoiceOf(const Group& group, size_t rank) {
  return {absl::StrCat(group.name(), " rank ", rank),
          {group.told(), last_words_},
          [this, prefix = RankPrefix(group, rank)](std::string_view line) {
            outlet_.Line(prefix, line);
          }};
}

void Supervisor::OnStarts() {
  for (const JoiningStart& start : router_->TakeJoining()) {
    if (Group* group = RunningStart(start.group, start.incarnation)) group->HeardOf();
  }
  for (GivenUpStart& start : router_->TakeGivenUp()) {
    Group* group = RunningStart(start.group, start.incarnation);
    if (group != nullptr) group->GiveUp(std::move(start.reason), MonotonicNow());
  }
}

Group* Supervisor::RunningStart(const std::string& name, uint64_t incarnation) {
  for (Group& group : groups_) {
    bool same = group.name() == name && group.incarnation() == incarnation;
    if (same && group.state() == Group::State::kRunning) return &group;
  }
  return nullptr;
}

void Supervisor::KillHung(Group& group) {
  if (MonotonicNow() < group.hung_at()) return;
  const std::string& reason = group.KillHung();
  Say(LogLevel::kError, "group_hung", {{"group", group.name()}, {"reason", reason}});
}

void Supervisor::OnGroupDeath(Group& group, const GroupDeath& death) {
  if (LeftBehind(death)) {
    group.set_told(death.reason);
    Say(LogLevel::kInfo, "group_left_behind",
        {{"group", group.name()}, {"rank", death.rank}, {"reason", death.reason}});
  } else if (!EndsLaunch(death)) {  // else the same words are the last ones of this launch
    group.set_told(death.reason);
    Say(LogLevel::kError, "group_died",
        {{"group", group.name()}, {"rank", death.rank}, {"reason", death.reason}});
  }
  absl::Status sent = link_->SendGroupDown(
      {group.name(), group.incarnation(), absl::StrCat("rank ", death.rank, ": ", death.reason)});
  if (!sent.ok()) Say(LogLevel::kError, "group_down_not_sent", {{"reason", ToStd(sent.message())}});
}

// A rank that says no at first start would say it again; one that was killed may have been unlucky.
bool Supervisor::EndsLaunch(const GroupDeath& death) const {
  return phase_ == Phase::kServing && !ready_ && !death.exit.signalled;
}

// A router that has drained does not wait for a group that is just starting: it serves nobody. Had
// the router died instead, that would be told of the router.
bool Supervisor::LeftBehind(const GroupDeath& death) const {
  return phase_ == Phase::kDraining && !death.exit.signalled && death.exit.code == kRouterGoneExit;
}

void Supervisor::OnGroupGone(Group& group) {
  if (phase_ == Phase::kServing && group.state() == Group::State::kRunning) {
    group.Return(MonotonicNow());
    return SayRestart(group, "left");
  }
  if (phase_ == Phase::kEnding || group.state() == Group::State::kRunning) return group.Leave();
  GroupDeath death = group.Bury(MonotonicNow());
  std::string where = absl::StrCat(group.name(), " rank ", death.rank);
  if (LeftBehind(death)) return group.Leave();
  if (phase_ == Phase::kDraining) {
    exit_code_ = 1;
    last_words_ = absl::StrCat(where, ": died while draining: ", death.reason);
    return group.Leave();
  }
  if (EndsLaunch(death)) {
    return Fail(where, death.reason, death.exit.code == kUsageExit ? kUsageExit : 1);
  }
  if (!ready_ && group.quick_deaths() >= kMaxFirstDeaths) return Fail(where, death.reason);
  SayRestart(group, "died");
}

void Supervisor::SayRestart(const Group& group, std::string_view after) {
  Say(LogLevel::kInfo, "group_restarts",
      {{"group", group.name()},
       {"after", after},
       {"in_ms", (group.start_at() - MonotonicNow()) / kMillisecond},
       {"quick_deaths", group.quick_deaths()}});
}

void Supervisor::End(int code) {
  if (phase_ == Phase::kEnding) return;
  phase_ = Phase::kEnding;
  exit_code_ = std::max(exit_code_, code);
  if (router_.has_value()) router_->process().Signal(SIGKILL);
  for (Group& group : groups_) group.Kill();
}

void Supervisor::Fail(const std::string& where, const std::string& what, int code) {
  if (phase_ == Phase::kEnding) return;
  // A rank names itself; once is enough.
  last_words_ = what.starts_with(where + ": ") ? what : absl::StrCat(where, ": ", what);
  End(code);
}

void Supervisor::ReadOutput(int fd, ChildOutput& output, bool& open, const Voice& voice) {
  output.LetGoOld(MonotonicNow(), voice.name, voice.told, voice.sink);
  if (open) open = output.Drain(fd, MonotonicNow(), voice.sink);
}

void Supervisor::Say(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  std::string line = FormatLogLine(level, event, fields);
  if (!line.empty()) outlet_.Line("", line);
}

bool Supervisor::AllGone() const {
  if (!router_gone_) return false;
  return std::all_of(groups_.begin(), groups_.end(), [&](const Group& group) {
    bool never_again = phase_ != Phase::kServing;
    return group.state() == Group::State::kLeft ||
           (never_again && group.state() == Group::State::kWaiting);
  });
}

std::string Supervisor::RankPrefix(const Group& group, size_t rank) const {
  // A line of JSON stays one.
  if (config_.json_log) return {};
  return absl::StrCat(group.name(), " rank ", rank, " | ");
}

}  // namespace kvern
