// The groups of workers: who joined, which are live, and where a request fits.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/id_map.h"
#include "cluster/base/time.h"
#include "router/core/breaker.h"
#include "router/core/forecast.h"
#include "router/core/ledger.h"
#include "router/core/request.h"
#include "router/core/router.h"
#include "router/core/step_model.h"
#include "schemas/messages.h"

namespace kvern::router {

enum class GroupState : uint8_t {
  kJoining,   // some ranks are missing
  kStarting,  // all were told to start; the leader's first report is awaited
  kLive,      // takes dispatches
  kRefused,   // this incarnation's ranks differ, or do not suit the router
  kLost,      // dead, or gone for the moment, until another incarnation joins
};

// Prompts that a group was sent and that have no first token yet.
struct Unanswered {
  uint32_t short_prompt = 0;  // up to so many tokens a prompt is short; fixed at the group's start
  uint32_t requests = 0;
  uint64_t tokens = 0;        // of their prompts
  uint64_t short_tokens = 0;  // of the short ones among them
  uint64_t of_others = 0;     // of all prefill that was reported, what was not for them
  bool lost_track = false;    // one went, and how much of it was done is not known

  void Add(uint32_t prompt_tokens) {
    ++requests;
    tokens += prompt_tokens;
    if (prompt_tokens <= short_prompt) short_tokens += prompt_tokens;
  }
  // The last token of a prompt is computed once for each of its `n` choices.
  void GotToken(uint32_t prompt_tokens, uint32_t n) {
    Remove(prompt_tokens);
    of_others += uint64_t{prompt_tokens} + n - 1;
  }
  void Drop(uint32_t prompt_tokens) {
    Remove(prompt_tokens);
    lost_track = true;
  }
  // After each report: `reported` is the group's prefill so far, without what was computed again.
  void Settle(uint64_t reported) {
    of_others = requests == 0 || lost_track ? reported : std::min(of_others, reported);
    lost_track = false;
  }
  // Tokens still to be computed.
  uint64_t Left(uint64_t reported) const {
    uint64_t done = reported - std::min(of_others, reported);
    return tokens - std::min(done, tokens);
  }

 private:
  void Remove(uint32_t prompt_tokens) {
    --requests;
    tokens -= prompt_tokens;
    if (prompt_tokens <= short_prompt) short_tokens -= prompt_tokens;
  }
};

// What the choice among the groups asks of each, side by side for all of them: it is made for every
// request, and a group's own entry is large. Counts beyond 32 bits are taken for the most there
// are.
struct alignas(64) GroupLoad {
  StepSpeed speed;
  uint32_t share = 0;       // of its blocks promised, in 2^-20
  uint32_t chunk = 0;       // tokens that a step prefills
  uint32_t backlog = 0;     // tokens to prefill
  uint32_t rows = 0;        // that a step decodes: what runs, each taken for one choice
  uint32_t slowness = 0;    // Group::slowness
  bool takes_work = false;  // Group::open(); if not, nothing else is set
  bool busy = false;        // something runs on it

  // Until a prompt of so many tokens is computed there and its first token drawn, beside what is
  // at the group and nothing that may overtake it later: this decides who is dropped.
  Duration FirstTokenTime(Time now, uint32_t prompt_tokens) const {
    uint64_t tokens = uint64_t{backlog} + prompt_tokens;
    // The step under way ends first. Where first tokens are late it mostly prefills, so the mean of
    // all steps it is: with what decoding alone takes, 1 to 4 % fewer are in time at twice the
    // capacity.
    return speed.Prefill(now, tokens, chunk) + (busy ? speed.MeanStep(now) : 0);
  }
  friend bool operator==(const GroupLoad&, const GroupLoad&) = default;
};
static_assert(sizeof(GroupLoad) == 64);  // one line of memory

// A group keeps its entry over incarnations, so that its size stays known while it restarts.
struct Group {
  uint64_t number = 0;  // order of first appearance; never reused
  size_t index = 0;     // in the table, which is in that order
  std::string name;
  GroupState state = GroupState::kJoining;
  Incarnation incarnation = 0;
  Incarnation previous = 0;   // the one before: its late messages are not a restart
  std::string refusal;        // when refused
  std::vector<Join> ranks;    // [world] as joined; world 0: not yet
  std::vector<PeerId> peers;  // [world] 0: not yet
  uint32_t joined = 0;
  Time first_join = 0;        // of this incarnation; of the time that the router listened
  uint64_t total_blocks = 0;  // of the newest incarnation that was complete; 0: none yet

  // ---- while starting or live
  std::optional<Ledger> ledger;
  std::vector<Request*> running;  // dispatched and not released
  std::vector<Request*> closing;  // of these, the ones whose release waits for an acknowledgement
  // Of these, those that the last report had tokens of, in its order; null where one was released.
  // The next report will have nearly the same, so they are looked for here first.
  std::vector<Request*> heard;
  Commands pending;            // of this turn
  bool listed = false;         // in GroupTable's list of those with something pending
  uint64_t pending_bytes = 0;  // of its dispatches
  uint64_t next_sequence = 1;  // of `pending`
  uint64_t acked = 0;
  bool draining = false;    // takes nothing new, finishes what runs and leaves
  bool drain_sent = false;  // its leader was told so
  Time last_report = 0;
  Time last_heard = 0;       // the same, of the time that the router listened
  Time timer_at = kTimeMax;  // of its entry in Timers: what is due depends on the state
  StepReport report;         // the last, without runs and nacks
  int64_t drift = 0;

  // ---- what is expected of it
  Forecast forecast;            // of the standard requests that run
  bool forecast_old = true;     // something changed since
  PoolBlocks largest_standard;  // in each pool the largest worst case of one, as of the forecast
  StepModel steps;
  uint64_t slowness = DecodeCost::kLikeOthers;  // as of its last report
  Unanswered unanswered;
  bool prefill_full = false;  // a request waits because of its prefill backlog

  Breaker breaker;  // over incarnations: that is when it matters

  bool live() const { return state == GroupState::kLive; }
  bool open() const { return live() && !draining; }  // for new work
  // No peer of it is known; only its name, its size and why.
  bool dead() const { return state == GroupState::kRefused || state == GroupState::kLost; }
  bool complete() const { return live() || state == GroupState::kStarting; }
  // Those that have not joined.
  std::vector<uint32_t> AbsentRanks() const {
    std::vector<uint32_t> absent;
    for (uint32_t rank = 0; rank < peers.size(); ++rank) {
      if (peers[rank] == 0) absent.push_back(rank);
    }
    return absent;
  }
  bool HasPending() const {
    return !pending.dispatches.empty() || !pending.cancels.empty() || pending.drain;
  }
};

class GroupTable {
 public:
  size_t size() const { return groups_.size(); }
  Group& at(size_t index) { return *groups_[index]; }
  const Group& at(size_t index) const { return *groups_[index]; }

  Group* FindByName(const std::string& name);
  Group* FindByNumber(uint64_t number);
  // The group that `peer` is a rank of, or null.
  Group* FindByPeer(PeerId peer);

  // The dead that must make room for another group: one that was never complete when there are
  // kMaxFailedStarts, any when the table is full. Null: none.
  Group* Surplus();
  // Null: the table is full.
  Group* Add(const std::string& name);
  // REQUIRES: nothing runs on it.
  void Remove(Group& group);

  void MapPeer(PeerId peer, Group& group);
  void UnmapPeers(Group& group);

  // Sets the blocks of a group that is complete.
  void SetTotal(Group& group, uint64_t blocks);
  // Blocks of the largest group that is or was complete, 0 when none was: what never fits is beyond
  // it.
  uint64_t LargestTotal() const { return largest_total_; }
  // Of the smallest of these. Where all are alike it is the same.
  uint64_t SmallestTotal() const { return smallest_total_; }

  // As of the last NoteLoad. REQUIRES: index < size().
  const GroupLoad& load(size_t index) const { return loads_[index]; }
  void NoteLoad(const Group& group, const GroupLoad& load) { loads_[group.index] = load; }

  // The group has something to say at the end of the turn.
  void NotePending(Group& group);
  // Those that said so since the last call, in the table's order.
  const std::vector<Group*>& TakePending();

 private:
  void FindExtremeTotals();

  std::vector<std::unique_ptr<Group>> groups_;
  std::vector<GroupLoad> loads_;  // [groups]
  std::vector<Group*> pending_;
  std::vector<Group*> taken_;
  uint64_t largest_total_ = 0;
  uint64_t smallest_total_ = 0;
  IdMap<PeerId, Group*> by_peer_;
  uint64_t next_number_ = 1;
};

// A prompt of up to this part of a step's tokens is short: the worker lets it overtake long ones.
inline constexpr uint32_t kShortPromptShare = 4;

inline constexpr size_t kMaxGroups = 4096;
// Refused or lost before they were complete: kept so that their other ranks hear why.
inline constexpr ptrdiff_t kMaxFailedStarts = 16;
// Keeps products of block counts within 64 bits.
inline constexpr uint64_t kMaxGroupBlocks = uint64_t{1} << 31;

// What is wrong with a group's name, which stands in log lines, metrics and tables; empty: nothing.
std::string GroupNameFault(const std::string& name);
// What is wrong with the rest of a Join by itself or for this router; empty: nothing.
std::string JoinFault(const RouterConfig& config, const Join& join);
// How two ranks of one incarnation differ where they must agree; empty: they agree.
std::string JoinDifference(const Join& a, const Join& b);

}  // namespace kvern::router
