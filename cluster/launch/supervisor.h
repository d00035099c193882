// The launcher's one loop: one router and its groups, watched by pidfd, from start to nothing left.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/log.h"
#include "cluster/base/ready_file.h"
#include "cluster/launch/group.h"
#include "cluster/launch/launch_config.h"
#include "cluster/launch/router_link.h"
#include "cluster/launch/router_process.h"
#include "cluster/launch/stderr_outlet.h"

namespace kvern {

class Supervisor {
 public:
  // `signals` is a signalfd of SIGTERM and SIGINT, which are blocked in every thread.
  Supervisor(LaunchConfig config, int signals);

  // Runs the service until it is told to end or cannot go on; returns the exit code. All children
  // have ended when it returns.
  int Run();

 private:
  enum class Phase {
    kServing,   // starting or ready
    kDraining,  // the router was told to finish
    kEnding,    // everything was killed; waiting for the last to be gone
  };

  void Turn();
  // When the loop must wake up although nothing happens; kTimeMax: never.
  Time NextDeadline() const;

  void OnSignal();
  void StartRouter();
  void OnRouter();
  void OnListening();
  void OnRouterExit();
  void OnGroup(Group& group);
  // Starts that the router has heard of, and those that it has given up: their ranks may hang.
  void OnStarts();
  Group* RunningStart(const std::string& name, uint64_t incarnation);
  void KillHung(Group& group);
  void OnGroupDeath(Group& group, const GroupDeath& death);
  void OnGroupGone(Group& group);
  void SayRestart(const Group& group, std::string_view after);
  bool EndsLaunch(const GroupDeath& death) const;
  bool LeftBehind(const GroupDeath& death) const;
  void StartGroups();
  void BecomeReady();

  void Drain();
  // Kills everything; Run returns `code` once all have ended. The first call counts.
  void End(int code);
  // End(code) with the last line on stderr: "kvern-launch: where: what".
  void Fail(const std::string& where, const std::string& what, int code = 1);

  // Whose lines they are, what was or will be told of what it says, and where they go.
  struct Voice {
    std::string name;
    std::vector<std::string> told;
    ChildOutput::LineSink sink;
  };
  Voice RouterVoice();
  Voice VoiceOf(const Group& group, size_t rank);
  void ReadRouter();
  void ReadOutput(int fd, ChildOutput& output, bool& open, const Voice& voice);
  void Say(LogLevel level, std::string_view event, const std::vector<LogField>& fields);
  bool AllGone() const;
  // What a group's ranks said last, but for what was or will be told of them.
  void LetGo(Group& group);
  std::string RankPrefix(const Group& group, size_t rank) const;

  LaunchConfig config_;
  int signals_;
  ReadyFile ready_file_;
  StderrOutlet outlet_;
  std::optional<RouterProcess> router_;
  std::unique_ptr<RouterLink> link_;  // once the router listens
  std::vector<Group> groups_;
  Phase phase_ = Phase::kServing;
  bool ready_ = false;
  bool router_gone_ = false;
  Time draining_since_ = 0;
  Time grace_until_ =
      kTimeMax;  // draining, after the router's exit: when the ranks left are killed
  int exit_code_ = 0;
  std::string last_words_;
};

}  // namespace kvern
