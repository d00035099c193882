// The router's state and its handlers, one .cc file per subject:
//   router.cc     events in, timers, Flush            client_events.cc  what clients say
//   admission.cc  from GenerateRequest to the queue   group_events.cc   how groups come and go
//   dispatch.cc   from the queue to a group           report.cc         what groups report
//   fit.cc        which group a request fits on       predict.cc        how long it will wait
//   ending.cc     every way a request ends            status.cc         what operators see; Audit
//   flow.cc       credit of streams and tenants       find.cc           where a request is, and why
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cluster/base/id_map.h"
#include "cluster/base/ring.h"
#include "cluster/base/rng.h"
#include "router/core/clients.h"
#include "router/core/groups.h"
#include "router/core/hold.h"
#include "router/core/length_model.h"
#include "router/core/release_curve.h"
#include "router/core/request.h"
#include "router/core/router.h"
#include "router/core/tenants.h"
#include "router/core/timers.h"
#include "router/core/validate.h"
#include "router/core/wait_queue.h"

namespace kvern::router {

class RouterImpl {
 public:
  RouterImpl(const RouterConfig& config, uint64_t seed, const TextFilterFactory* text);
  virtual ~RouterImpl() = default;

  void Step(Time now, RouterEvent event, RouterEffects& effects);
  void Flush(Time now, const Hearing& heard, RouterEffects& effects);
  Time NextDeadline() const { return timers_.Next(); }
  bool Drained() const;
  RouterStatus Status(Time now);
  void PrefetchReport(PeerId rank, size_t stage);
  RouterBooks Books(Time now, PeerId rank);
  uint64_t ReservedBlocks(PeerId rank);
  CapacityReply Capacity();
  bool IsOpen(const RequestId& id);
  absl::StatusOr<RequestStatus> Find(const RequestId& id);
  void Audit() const;

 protected:
  // ---- Which of those that wait may start. The simulator puts other rules in the place of these
  // two, to compare with.
  // fit.cc
  virtual Hold RoomHold(Group& group, const Request& request) const;
  Hold PrefillHold(const Group& group, uint32_t prompt_tokens) const;
  // dispatch.cc: ends the request if its first token would come after its deadline.
  virtual bool TooLate(const Group& group, Request& request);

 private:
  // ---- router.cc: events
  void On(ClientSaid& event);
  void On(ClientUnreachable& event);
  void On(Tokenized& event);
  void On(WorkerSaid& event);
  void On(WorkerUnreachable& event);
  void On(Tick&) {}  // every Flush runs the timers
  void On(BeginDrain& event);
  void On(Absent& event);
  // Silence is counted in the time that the router listened, which stands still while it does not
  // run. Of who spoke last at `since` of that time, given until when all was heard; `allowed` is
  // how long he may be silent.
  Time Listened() const { return now_ - missed_; }
  Duration Silence(Time since, Time heard, Duration allowed) const;
  void RunTimers();
  void OnRequestTimer(const Timer& timer);
  void AddNote(bool warning, std::string event,
               std::vector<std::pair<std::string, std::string>> fields);

  // ---- status.cc
  GroupStatus StatusOf(Group& group, Time now) const;
  void AuditGroup(const Group& group) const;
  void AuditTenants() const;

  // ---- find.cc
  void FindQueued(const Request& request, RequestStatus& status);
  void WhyQueued(const Request& request, RequestStatus& status);
  struct NoGroup {
    std::string text;
    Why soonest = Why::kNotLive;  // the first kind of hold that is told
  };
  void SetExpectedWait(const Request& request, RequestStatus& status);
  // What it needs, and what keeps each group of at most so many blocks from taking it: for each
  // kind of hold, the group that is nearest to its end.
  NoGroup WhyNoGroup(const Request& request, uint64_t most = kAnySize);

  // ---- client_events.cc
  void OnHello(PeerId peer, const Hello& hello);
  void OnCancel(Client& client, const CancelRequest& message);
  void OnClientTimer(const Timer& timer);
  // Null: there is no room for one more.
  Client* AddClient(PeerId peer);
  // REQUIRES: it has no open request.
  void ForgetClient(Client& client);
  void ArmClientLease(Client& client, Duration left);
  // Cancels all that a client has open; with `tell`, it gets an error for each.
  void CancelAll(Client& client, const std::string& why, bool tell);
  void SendToClient(PeerId client, RouterToClient message);
  void FlushDeltas(Client& client);

  // ---- admission.cc
  void OnGenerate(Client& client, GenerateRequest message);
  Refusal Admissible(Client& client, const GenerateRequest& message, uint64_t bytes);
  Request& OpenRequest(Client& client, RequestId id, GenerateRequest& message);
  // The ids are known and valid: refuse, or line up.
  void Enqueue(Request& request, TokenIds ids);
  // `prompt_tokens` may be a lower bound if max_tokens alone is too much for the model: whatever
  // its length, it never fits.
  Refusal CheckFits(uint64_t prompt_tokens, uint32_t max_tokens, uint32_t n) const;
  // It has more tokens than any request may have.
  Refusal TextTooLong(const Request& request) const;
  Refusal Overloaded(std::string what);
  std::string QueueFull() const;  // what waits, and how much may
  Refusal CheckQuota(Tenant& tenant, uint64_t need);
  // What would be refused anyway costs nobody its place.
  Refusal CheckBeforeMakingRoom(Client& client, const GenerateRequest& message);
  void SetDeadlines(const GenerateRequest& message, Request& request) const;
  // The prompt's length is known: what it needs, at worst and as expected.
  void SizeUp(Request& request) const;
  // Room for `bytes` more at the cost of one that has less right to wait.
  bool MakeRoom(const Tenant& tenant, size_t band, uint64_t bytes);
  // The set of groups changed: what waits and can no longer fit is refused.
  void RecheckQueue();
  void SetTimer(Request& request, Time at);

  // ---- fit.cc
  // Blocks a request is expected to hold at its end.
  uint64_t ExpectedFinalBlocks(const Request& request) const;
  // Brings request.expected_tokens up to date.
  void Foresee(Request& request) const;
  void RefreshForecast(Group& group) const;
  // What the ledger promises: the guaranteed worst cases and the expected peak of the others.
  PoolBlocks ReservedBlocks(Group& group) const;
  PoolBlocks StandardLimit(const Group& group) const;
  // Why the group gets no work at all; why it cannot have this request whatever runs on it; why it
  // does not take it now, room included.
  Hold WorkHold(const Group& group) const;
  Hold StandingHold(const Group& group, const Request& request) const;
  Hold HoldOf(Group& group, const Request& request) const;
  uint64_t ChunkOf(const Group& group) const;
  Duration PrefillTime(const Group& group, uint64_t tokens) const;
  // Prefill tokens of all steps, without those computed again after a preemption.
  static uint64_t FirstPrefill(const StepReport& report);
  uint64_t PrefillBacklog(const Group& group) const;  // tokens
  GroupLoad LoadOf(const Group& group) const;
  // After every change of what LoadOf says; Audit compares.
  void NoteLoad(const Group& group);
  // Where the request goes, of groups of at most so many blocks; null: it fits nowhere now. If its
  // first token would come too late on the best group, an idle one takes it that may be in time,
  // though the end is expected later there.
  Group* GroupFor(const Request& request, uint64_t most);
  Group* IdleInTime(const Request& request, uint64_t most);
  // The group where the request fits and is expected to finish first; null: it fits nowhere now.
  Group* BestGroup(const Request& request, uint64_t most);
  // Whether it fits or not. Null: there is none but those in `tried_`. O(groups), some ns each.
  Group* BestOfUntried(const Request& request, uint64_t most, bool emptiest);
  // Whether it would take the request if it had room, and has at most so many blocks.
  bool MayGoTo(const Group& group, const Request& request, uint64_t most) const;
  // From its first token until its last is expected from there.
  Duration DecodeTime(const GroupLoad& load, const Request& request,
                      uint32_t slowness_of_unknown) const;
  // Of the quickest group that is known; DecodeCost::kLikeOthers at most.
  uint32_t LeastSlowness() const;

  // ---- predict.cc
  // How well a group's speed is known.
  enum class Measure : uint8_t {
    kNone,
    kOnce,     // or long ago: one look at a prefill may have been at the very first
    kTrusted,  // StepSpeed::trusted_until
  };
  static constexpr size_t kNumMeasures = 3;
  Measure MeasureOf(const Group& group) const;
  // Of the groups that are measured alike.
  struct PrefillLeft {
    uint64_t tokens = 0;
    Duration time = 0;
  };
  // What runs and is ahead of all that waits, as of a moment ago.
  struct Drain {
    bool taken = false;
    Time taken_at = 0;
    size_t groups = 0;      // that take work
    uint64_t requests = 0;  // that run, on groups that take none, too
    // One of those that are measured best; groups are not removed within `taken_at`'s turn.
    const Group* sample = nullptr;
    uint64_t free_blocks = 0;
    Duration prefill_backlog = 0;  // mean over the groups
    ReleaseCurve curve;
    std::vector<Tenant*> limited;  // whose `releases` are not empty
  };
  void RefreshDrain();
  void DrainRequests(const Group& group, bool works);
  // Its blocks count as its tenant's again after `delay`, of the `whole` time for which they are
  // held.
  void NoteQuotaRelease(const Request& request, Duration delay, Duration whole);
  struct Wait {
    Duration time = 0;
    bool for_quota = false;  // it is its tenant's max_blocks that takes longest
  };
  // The groups that it can go to before what waits: kAnySize, or those of at most so many blocks
  // that the head cannot use.
  uint64_t SizesFor(const Request& request);
  // Until it is dispatched; absent when no group takes work or its speed is not known.
  std::optional<Wait> PredictWait(const Request& request);
  // Until its tenant's own releases let it start. O(1).
  Duration WaitForQuota(const Request& request, const Ahead& ahead, Duration step) const;
  // What finds no free blocks waits for turns of those that do; a turn is as long as an answer.
  static Duration TurnsOf(const Request& request, uint64_t blocks, uint64_t of, Duration step);
  // The same when no group takes work: from when one does, at the rate that was measured last, on
  // that group and with nothing on it. Absent when none was ever measured.
  std::optional<Duration> WaitAtLastRate(const Request& request);
  // How fast a group was, as far as its speed was measured.
  struct Rate {
    StepSpeed speed;
    uint64_t chunk = 0;   // tokens that a step prefills
    uint64_t blocks = 0;  // for standard requests; 0: no speed was measured
  };
  Rate RateOf(const Group& group) const;
  // Before what is known of the group's speed goes.
  void KeepRate(const Group& group);
  Duration OwnPrefill(const Request& request);
  // Its prefill on a group that is idle and would take it in this turn; 0 where what is known of
  // the group's speed is no reason not to try. Absent: there is none. O(groups), some ns each.
  std::optional<Duration> PrefillAtOnce(const Request& request) const;
  Duration IdlePrefill(const GroupLoad& load, const Request& request) const;
  Refusal CheckWait(const Request& request);
  // Whether every group is paused, as it failed too often, until it is too late for the request.
  Refusal CheckPauses(const Request& request);
  uint64_t Jittered(Duration wait);
  // Until half of what waits will have been dispatched.
  Duration HalfQueueTime();

  // ---- dispatch.cc
  void DispatchWaiting();
  // False: nothing that waits can go now.
  bool DispatchOne();
  // The most blocks of a group that works and has less than `blocks`; 0: there is none. O(1) where
  // groups are alike.
  uint64_t LargestBelow(uint64_t blocks) const;
  // Sets candidates_: of those that need at most so many blocks the head, and those that may be
  // tried if it does not fit.
  void FindCandidates(uint64_t most = kAnySize);
  // By its tenant's quota of blocks, if `more` of them ran.
  Hold QuotaHold(const Request& request, uint64_t more = 0) const;
  // Why it may not be dispatched before the head that does not fit.
  Hold PassHold(const Request& head, const Request& request) const;
  // Of those in candidates_, the first of a band, which is there.
  const Request& LeastServed(size_t band) const;
  // By what its tenant was served more than the one of its band that has least.
  Hold AheadHold(const Request& request) const;
  // Dispatches a small request that fits past a head that does not, to a group of at most so many
  // blocks.
  bool Backfill(Request& head, uint64_t most, Request* larger);
  // The least served of a band is served or passed, of those that need at most so many blocks where
  // `larger` is the head that needs more.
  void NoteTurnOf(const Request& least, uint64_t most, Request* larger);
  void DispatchTo(Group& group, Request& request);
  // Ends what waits when the router drains and no group takes work: none may join any more.
  void EndHopeless();
  // Tells the leaders of those that are to leave: all, when the router drains and nothing waits.
  void DrainGroups();
  void FlushCommands();
  void SendCommands(Group& group);

  // ---- ending.cc
  void Fail(Request& request, Refusal refusal);
  void CountError(ErrorCode code, Tenant& tenant);
  void SendError(PeerId client, Tenant& tenant, const RequestId& id, Refusal refusal);
  void Complete(Request& request);
  // It runs nowhere any more: gives back what it held of its tenant's.
  void Settle(Request& request);
  // The client needs no more of it: whoever works on it is told to stop.
  void Abandon(Request& request);
  void CloseForClient(Request& request);
  void CancelChoice(Request& request, uint32_t choice);
  // The worker let go: its blocks are free.
  void Release(Request& request);
  // Whoever worked on it is done with it: destroys it, unless its reader has not got it all.
  void LetGo(Request& request);
  void Destroy(Request& request);

  // ---- group_events.cc
  void OnJoin(PeerId peer, Join join);
  // A rank that nobody numbered belongs to the start that gathers, or begins the next one.
  void NumberStart(const Group* group, const Group* speaks_for, Join& join);
  void BeginIncarnation(Group& group, const Join& join);
  void RefuseGroup(Group& group, std::string reason);
  void RefusePeer(PeerId peer, std::string reason);
  void StartGroup(Group& group);
  void OnGroupDown(const GroupDown& message);
  // The group whose start `peer` is a rank of. Null, and counted: another start, or a stranger.
  Group* GroupThatSaid(PeerId peer, Incarnation incarnation);
  void OnLeave(PeerId peer, const Leave& message);
  void OnLeaveSoon(PeerId peer, const LeaveSoon& message);
  void OnGroupTimer(const Timer& timer);
  void SetGroupTimer(Group& group, Time at);
  void ForgetGroup(Group& group);
  Group* AddGroup(const std::string& name);
  // The group's processes count as dead. With `tell`, its ranks are told to exit, in case they are
  // not.
  void LoseGroup(Group& group, const std::string& reason, bool tell);
  void EndStreams(Group& group, const std::string& reason);

  // ---- flow.cc
  bool HasCredit(const Client& client, const Request& request, const Delta& delta) const;
  void Forward(Client& client, Request& request, Delta&& delta);
  // May end this or another stream of the client, when it leaves too much unread.
  void Keep(Client& client, Request& request, Delta&& delta);
  void OnConsumed(Client& client, const Consumed& message);
  // Sends what there is credit for; the request may be gone afterwards.
  void SendKept(Client& client, Request& request);
  void DropKept(Client& client, Request& request);
  void CountKept(Client& client, uint64_t before, uint64_t after);
  Time PausedUntil(const Request& request, Duration idle) const;
  void FailSlowReader(Request& request, std::string why);
  // How many further requests of a tenant would be lined up now: what its fair share of the queue
  // has left, 0 if one more would wait beyond the default deadline. O(tenants that wait).
  uint32_t CreditOf(Tenant& tenant);
  void AuditFlow() const;

  // ---- report.cc
  void OnReport(PeerId peer, StepReport report);
  std::string ReportFault(const Group& group, const StepReport& report) const;
  // Empty, or how the group broke the protocol.
  std::string TakeNack(Group& group, const Nack& nack, uint64_t acked);
  std::string TakeRuns(Group& group, StepReport& report);
  std::string TakeRun(Group& group, Request& request, TokenRun& run, uint64_t acked);
  std::string RunFault(const Request& request, const TokenRun& run) const;
  void Deliver(Request& request, TokenRun& run);
  void SendDelta(Request& request, Delta&& delta);
  Usage UsageOf(const Request& request) const;
  void GotToken(Group& group, Request& request);
  void ObserveLength(Request& request, uint32_t tokens);
  // Step times, from the difference to its last report.
  void Learn(Group& group, const StepReport& report, uint64_t tokens);
  void Acknowledge(Group& group, uint64_t acked);
  // Null: it does not run there (any more). `likely` has the id, or is null: it is looked up.
  Request* FindRunning(const Group& group, Request* likely, const RequestId& id, Epoch epoch);

  RouterConfig config_;
  Rng rng_;
  const TextFilterFactory* text_;

  ClientTable clients_;
  GroupTable groups_;
  WaitQueue queue_;
  Timers timers_;
  IdMap<RequestId, std::unique_ptr<Request>> requests_;
  TenantTable tenants_;
  LengthModel lengths_;  // of all tenants
  Drain drain_;
  Rate last_rate_;                  // of the groups that are gone, the one that was measured last
  bool dispatch_due_ = false;       // something changed that may let a waiting request run
  bool waits_for_service_ = false;  // such as what the tenant served least is served
  std::vector<Request*> candidates_;
  std::vector<Request*> hearing_;   // what becomes Group::heard of the report that is being read
  DecodeCost decode_cost_;          // of all groups
  std::vector<Duration> finishes_;  // on each of the groups, of the request at hand
  std::vector<size_t> tried_;       // groups that the request at hand does not fit on
  size_t withdrawn_ = 0;            // texts that have ended and are still in the pool
  std::vector<Request*> paused_;    // have deltas kept for them
  uint64_t kept_bytes_ = 0;         // of all clients
  bool draining_ = false;
  bool drain_due_ = false;  // a group is to leave whose leader may not have been told
  RouterCounters counters_;
  Duration missed_ = 0;  // all the time that nobody ran this

  // Of the call in progress.
  Time now_ = 0;
  Hearing heard_;  // of a Flush
  RouterEffects* out_ = nullptr;
};

}  // namespace kvern::router
