// One simulated service: the real Router and the real Schedulers, everything else made up, under
// virtual time. First a phase with load and faults, in which nothing wrong may ever happen; then
// the faults stop, and everything good must happen.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/router/core/letter_filter.h"
#include "tests/sim/client.h"
#include "tests/sim/group.h"
#include "tests/sim/tamper.h"
#include "tests/sim/world.h"

namespace kvern::sim {

class Simulation : public World {
 public:
  explicit Simulation(const SimOptions& options);

  // The whole run. Stops early when something is broken.
  void Run();

  const std::vector<std::string>& violations() const { return violations_; }
  // Over everything the router did and when: equal for equal options.
  uint64_t event_hash() const { return hash_; }
  uint64_t events() const { return queue_.executed(); }
  const Tally& tally() const { return checker_.tally(); }
  uint64_t lost_groups() const { return lost_groups_; }
  uint64_t stale_runs() const { return stale_runs_; }

  // ---- World
  Time now() const override { return queue_.now(); }
  void After(Duration delay, std::function<void()> action) override {
    queue_.After(delay, std::move(action));
  }
  Duration Delay() override;
  void ToRouter(Link& link, RouterEvent event, std::function<bool()> alive) override;
  PeerId NewPeer() override { return next_peer_++; }
  const SimOptions& options() const override { return options_; }
  Checker& checker() override { return checker_; }

 private:
  static RouterConfig ConfigOf(const SimOptions& options);
  void AddClient();
  void ScheduleLoad();
  void ScheduleFaults();
  void Ask();
  SimGroup& AnyGroup() { return *groups_[fault_rng_.Below(groups_.size())]; }
  SimClient& AnyClient();

  // ---- the router's loop
  void WakeRouter(Time at);
  void Turn();
  void Emit(RouterEffects& effects);
  void EmitToClient(const ToClient& to);
  void EmitToWorker(const ToWorker& to);
  void AnswerTokenize(Tokenize& tokenize);
  void Digest(const std::string& text);

  // ---- what must hold
  void CheckState();
  void CheckGroup(const GroupStatus& seen);
  void CheckWaiting();
  void CheckNotes(const std::vector<Note>& notes);
  void Violate(const std::string& what);
  void CheckDispatches(const ToWorker& to);
  void RunUntil(Time end);
  void FinishLiveness();

  SimOptions options_;
  EventQueue queue_;
  Rng load_rng_;
  Rng fault_rng_;
  Rng network_rng_;
  Checker checker_;
  LetterFilterFactory filters_;
  Router router_;
  Tamper tamper_;

  PeerId next_peer_ = 1;
  std::vector<std::unique_ptr<SimGroup>> groups_;
  std::vector<std::unique_ptr<SimClient>> clients_;
  std::map<PeerId, Link> to_peers_;
  std::map<std::string, uint64_t> known_groups_;  // name -> blocks, since it first was complete
  std::map<std::string, uint64_t> losses_;        // name -> how often the router lost it
  std::vector<RequestId> waiting_;                // accepted, and last seen in the queue
  std::vector<RouterEvent> inbox_;
  bool lose_tail_ = false;  // what a dead peer had under way is lost
  Time wake_at_ = kTimeMax;
  bool faults_on_ = true;

  uint64_t hash_ = 0;
  uint64_t lost_groups_ = 0;
  uint64_t stale_runs_ = 0;
  std::vector<std::string> violations_;
};

}  // namespace kvern::sim
