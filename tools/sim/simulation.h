// One simulated service: the real Router and the real Schedulers, everything else made up, under
// virtual time. First a phase with load and faults, in which nothing wrong may ever happen; then
// both stop, and everything good must happen.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cluster/base/rng.h"
#include "router/core/router.h"
#include "tools/sim/breaker_watch.h"
#include "tools/sim/checker.h"
#include "tools/sim/client.h"
#include "tools/sim/digest.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/fault_injector.h"
#include "tools/sim/flow_watch.h"
#include "tools/sim/front_end.h"
#include "tools/sim/group.h"
#include "tools/sim/network.h"
#include "tools/sim/options.h"
#include "tools/sim/queue_watch.h"
#include "tools/sim/workload.h"
#include "tools/sim/world.h"

namespace kvern::sim {

// What the KV memory of all groups held at one moment.
struct KvSample {
  Time at = 0;
  uint64_t used_blocks = 0;
  uint64_t reserved_blocks = 0;
  uint64_t total_blocks = 0;
  uint64_t queue_entries = 0;
};

// Sums over the samples of one group between warm-up and the end of the load.
struct GroupUse {
  uint64_t samples = 0;  // in which it was live
  uint64_t used_blocks = 0;
  uint64_t total_blocks = 0;
  uint64_t running = 0;  // requests
};

class Simulation : public World, private FaultTargets {
 public:
  // All outlive the simulation. `filters` may be null when no request reads text.
  Simulation(const SimOptions& options, Workload& workload, const TextFilterFactory* filters);

  // Changes what the router says in each turn, before anybody sees it: planted mistakes.
  void set_tamper(std::function<void(Time, RouterEffects&)> tamper) { tamper_ = std::move(tamper); }

  // The whole run. Stops early when something is broken.
  void Run();

  const std::vector<std::string>& violations() const { return violations_; }
  uint64_t event_hash() const { return digest_.hash(); }
  uint64_t events() const { return queue_.executed(); }
  const Records& records() const { return checker_.records(); }
  const RouterCounters& counters() const { return counters_; }
  const std::vector<std::unique_ptr<SimGroup>>& groups() const { return groups_; }
  const std::vector<KvSample>& kv_samples() const { return kv_samples_; }
  // By name.
  const std::map<std::string, GroupUse>& group_use() const { return group_use_; }
  const FairnessMeter& fairness() const { return watch_.fairness(); }
  const FlowCounts& flow() const { return flow_.counts(); }
  const FaultCounts& faults() const { return faults_.counts(); }

  // ---- World
  Time now() const override { return queue_.now(); }
  const SimOptions& options() const override { return options_; }
  Checker& checker() override { return checker_; }
  void Schedule(Time at, EventKind kind, uint32_t index, uint64_t value) override {
    queue_.Push(at, kind, index, value);
  }
  PeerId ConnectGroup(uint32_t owner) override { return network_.Connect(true, owner); }
  PeerId ConnectClient(uint32_t owner) override { return network_.Connect(false, owner); }
  void Disconnect(PeerId peer, bool lose_tail) override;
  void ToRouter(PeerId peer, RouterEvent&& event) override;

 private:
  struct UpMessage {
    PeerId peer = 0;
    RouterEvent event;
  };
  struct DownMessage {
    PeerId peer = 0;
    std::variant<RouterToClient, RouterToWorker> message;
  };

  // ---- FaultTargets
  std::vector<std::unique_ptr<SimGroup>>& all_groups() override { return groups_; }
  size_t client_slots() const override { return slots_.size(); }
  SimClient& ClientIn(size_t slot) override { return *clients_[slots_[slot]]; }
  void ReplaceClient(size_t slot, Duration delay) override;
  Network& network() override { return network_; }

  // ---- simulation.cc: events and phases
  void Handle(const Event& event);
  void HandleGroup(const Event& event);
  void HandleClient(const Event& event);
  void After(Duration delay, std::function<void()> action);
  void AddClient(uint32_t slot);
  void ScheduleNextAsk();
  void AskNext();
  void AskFor(Ask ask);
  void KeepWaiting();
  void Sample();
  void RunUntil(Time end);
  // Asks for the memory of the events that come next.
  void PrefetchSoon() const;
  bool Quiet();
  void FinishLiveness();
  void RunUntilQuiet();
  // Whether a small request is answered now that all is well.
  void AskOnceMore();

  // ---- router_loop.cc: what stands in for router/io
  void WakeRouter(Time at);
  void Deliver(PeerId peer, RouterEvent&& event);
  // What a client says of its readers may be lost, come late or be a lie. True: it is taken care
  // of.
  bool SpoilCredit(PeerId peer, RouterEvent& event);
  void Turn();
  // Asks for the memory of the reports that come after the `at`-th event of reading_.
  void PrefetchReports(size_t at);
  // What a report says of the requests that it is about.
  struct Heard {
    struct Run {
      RequestId id;
      uint32_t choice = 0;
      uint32_t tokens = 0;  // so far
    };
    std::vector<Run> runs;
    std::vector<Nack> nacks;
  };
  void Step(RouterEvent&& event);
  static Heard HeardIn(const StepReport& report);
  void Hear(uint32_t group, const Heard& heard, bool refused);
  void Emit(RouterEffects& effects);
  void Send(PeerId peer, std::variant<RouterToClient, RouterToWorker> message);
  void CutOff(uint32_t client);
  void RouterReceives(uint64_t slot);
  void PeerReceives(uint64_t slot);
  void AnswerTokenize(Tokenize& tokenize);

  // ---- invariants.cc: what must hold
  void CheckCheaply(const RouterEffects& effects);
  void NoteAnswer(const RouterToClient& message);
  void CheckCommands(const ToWorker& to);
  void CheckNotes(const RouterEffects& effects);
  // A group has left: none of its streams may end with it.
  void CheckLeave(const std::string& name, const RouterEffects& effects);
  void CheckFully();
  RouterStatus TakeStatus();
  SimGroup* GroupNamed(const std::string& name);
  void CheckGroup(const GroupStatus& seen);
  void NoteLinedUp(const RouterEffects& effects);
  // The router has read a report of the group; `before`: its books at that time.
  void CheckReport(PeerId reporter, const RouterBooks& before, const Heard& heard);
  void CheckHeld(const SimGroup& group, uint64_t worst_case_blocks);
  void CheckSent();
  void CheckSentTo(const SimGroup& group, PeerId leader, const RouterBooks& books,
                   const std::vector<RequestId>& sent);
  void CheckInTime(const SimGroup& group, const Record& record);
  void CheckExpectedWait();
  void CheckWaiting();
  // No group is idle while something waits that it could run.
  void CheckIdle(const RouterStatus& status);
  void CheckEnd();
  void Violate(const std::string& what);

  const SimOptions& options_;
  Workload& workload_;
  EventQueue queue_;
  Network network_;
  FaultInjector faults_;
  Digest digest_;
  Checker checker_;
  QueueWatch watch_;
  BreakerWatch breaker_;
  std::unique_ptr<FrontEnd> front_end_;
  FlowWatch flow_;
  RouterEffects effects_;
  std::function<void(Time, RouterEffects&)> tamper_;

  std::vector<std::unique_ptr<SimGroup>> groups_;
  std::vector<std::unique_ptr<SimClient>> clients_;  // all that ever were
  std::vector<uint32_t> slots_;                      // [workload's clients] who plays it now
  Slab<UpMessage> to_router_;
  Slab<DownMessage> to_peers_;
  Slab<std::function<void()>> calls_;
  std::vector<RouterEvent> inbox_;
  std::vector<RouterEvent> reading_;  // the inbox of the turn under way
  Time wake_at_ = kTimeMax;
  std::optional<Ask> next_ask_;
  uint64_t asked_ = 0;
  bool load_on_ = true;
  bool hears_reports_ = false;  // somebody wants to know what the router hears of

  std::map<std::string, uint32_t> group_by_name_;
  std::map<std::string, uint64_t> known_groups_;  // name -> blocks, since it first was complete
  std::map<std::string, uint64_t> losses_;        // name -> how often the router lost it
  struct Failures {
    uint64_t counted = 0;  // as of its last report
    uint64_t causes = 0;   // since then, one for each of its ends
  };
  std::map<std::string, Failures> failures_;  // by name
  std::vector<Incarnation> leaving_;  // [groups] the start of which a rank said that it leaves
  // What was sent to a group at the event of that number.
  struct Sent {
    uint64_t event = 0;
    std::vector<RequestId> requests;
  };
  std::vector<Sent> sent_;                          // [groups]
  std::set<std::pair<uint32_t, PeerId>> sent_now_;  // who got work in this turn: group, leader
  uint64_t sent_at_ = 0;  // the event at which anything was sent to any of them
  Sent lined_up_;         // the one request that was accepted in a turn of one event, and not sent

  std::vector<RequestId> waiting_;  // accepted, and last seen in the queue
  uint64_t next_full_check_ = 0;    // in events
  bool groups_delay_ = false;       // by faults: R6 cannot hold
  std::vector<KvSample> kv_samples_;
  std::map<std::string, GroupUse> group_use_;
  RouterCounters counters_;
  std::vector<std::string> violations_;
};

}  // namespace kvern::sim
