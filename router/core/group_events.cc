// How groups come and go.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// When it is said that a group waits for ranks: later than those that were started together come.
constexpr Duration kJoinPatience = 10 * kSecond;

std::string AbsentRanks(const Group& group, Duration waited) {
  return absl::StrCat("of ", group.peers.size(), " ranks these did not join within ",
                      waited / kSecond, " s: ", absl::StrJoin(group.AbsentRanks(), ", "));
}

}  // namespace

void RouterImpl::OnJoin(PeerId peer, Join join) {
  if (draining_) return RefusePeer(peer, "the router is draining");
  // Nothing is remembered under such a name.
  if (std::string bad = GroupNameFault(join.group); !bad.empty()) return RefusePeer(peer, bad);
  Group* speaks_for = groups_.FindByPeer(peer);
  Group* group = groups_.FindByName(join.group);
  if (join.group_incarnation == 0) NumberStart(group, speaks_for, join);
  if (speaks_for != nullptr) {
    bool again = speaks_for->name == join.group &&
                 speaks_for->incarnation == join.group_incarnation &&
                 speaks_for->peers.size() > join.rank && speaks_for->peers[join.rank] == peer;
    if (again) return;  // said twice
    return LoseGroup(*speaks_for, "one connection joined twice", /*tell=*/true);
  }
  std::string fault = JoinFault(config_, join);
  bool stray = group != nullptr && group->incarnation != join.group_incarnation &&
               (group->complete() || group->state == GroupState::kJoining);
  if (!fault.empty() && stray) return RefusePeer(peer, fault);  // it replaces nobody
  if (group == nullptr) group = AddGroup(join.group);
  if (group == nullptr) return RefusePeer(peer, absl::StrCat("there are ", kMaxGroups, " groups"));
  if (join.group_incarnation == group->previous && group->previous != group->incarnation) {
    return RefusePeer(peer, "this incarnation of the group was replaced");
  }
  if (group->peers.empty() || group->incarnation != join.group_incarnation) {
    BeginIncarnation(*group, join);
  }
  if (group->state == GroupState::kRefused) return RefusePeer(peer, group->refusal);
  if (group->state != GroupState::kJoining) {
    return RefusePeer(peer, "this incarnation of the group is complete or lost");
  }

  for (uint32_t rank = 0; fault.empty() && rank < group->peers.size(); ++rank) {
    if (group->peers[rank] != 0) fault = JoinDifference(group->ranks[rank], join);
  }
  if (fault.empty() && group->peers.size() > join.rank && group->peers[join.rank] != 0) {
    fault = absl::StrCat("two processes joined as rank ", join.rank);
  }
  if (!fault.empty()) {
    RefusePeer(peer, fault);
    return RefuseGroup(*group, std::move(fault));
  }
  group->peers[join.rank] = peer;
  groups_.MapPeer(peer, *group);
  uint32_t rank = join.rank;
  group->ranks[rank] = std::move(join);
  if (++group->joined == group->peers.size()) StartGroup(*group);
}

void RouterImpl::NumberStart(const Group* group, const Group* speaks_for, Join& join) {
  bool same = group != nullptr && (group == speaks_for || group->state == GroupState::kJoining);
  if (same) {
    join.group_incarnation = group->incarnation;
    return;
  }
  do {
    join.group_incarnation = rng_.Next();
  } while (join.group_incarnation == 0 ||
           (group != nullptr && (join.group_incarnation == group->incarnation ||
                                 join.group_incarnation == group->previous)));
}

void RouterImpl::BeginIncarnation(Group& group, const Join& join) {
  bool replaces = !group.peers.empty();
  if (replaces) {
    LoseGroup(group, "a newer incarnation of the group joined", /*tell=*/true);
  }
  group.previous = replaces ? group.incarnation : join.group_incarnation;
  group.incarnation = join.group_incarnation;
  group.state = GroupState::kJoining;
  group.joined = 0;
  uint32_t world = std::clamp(join.world, 1u, kMaxRanks);
  group.ranks.assign(world, Join{});
  group.peers.assign(world, 0);
  group.first_join = Listened();
  out_->joining.push_back({group.name, group.incarnation});
  SetGroupTimer(group, now_ + std::min(kJoinPatience, config_.join_timeout));
}

void RouterImpl::RefusePeer(PeerId peer, std::string reason) {
  out_->to_workers.push_back({peer, JoinRefused{std::move(reason)}});
}

void RouterImpl::RefuseGroup(Group& group, std::string reason) {
  AddNote(true, "group_refused", {{"group", group.name}, {"reason", reason}});
  for (PeerId peer : group.peers) {
    if (peer != 0) RefusePeer(peer, reason);
  }
  groups_.UnmapPeers(group);
  out_->given_up.push_back({group.name, group.incarnation, reason});
  group.state = GroupState::kRefused;
  group.refusal = std::move(reason);
  SetGroupTimer(group, now_ + config_.group_memory);
}

void RouterImpl::StartGroup(Group& group) {
  uint64_t blocks = group.ranks[0].kv_blocks;
  for (const Join& rank : group.ranks) blocks = std::min(blocks, rank.kv_blocks);
  groups_.SetTotal(group, blocks);
  group.ledger.emplace(blocks);
  group.state = GroupState::kStarting;
  group.pending = Commands{};
  group.pending_bytes = 0;
  group.next_sequence = 1;
  group.acked = 0;
  group.draining = group.drain_sent = false;
  group.report = StepReport{};
  group.drift = 0;
  group.unanswered.short_prompt = group.ranks[0].max_batch_tokens / kShortPromptShare;
  group.steps = StepModel();
  group.last_report = now_;
  group.last_heard = Listened();
  SetGroupTimer(group, now_ + config_.start_timeout);

  GroupStart start;
  start.router_incarnation = config_.router_incarnation;
  start.group_incarnation = group.incarnation;
  start.kv_blocks = blocks;
  start.rendezvous = group.ranks[0].rendezvous;
  start.lease_ms = static_cast<uint32_t>(config_.group_lease / kMillisecond);
  // Nobody else is told, and nobody is told again: it is for these processes alone.
  start.comm_id = std::exchange(group.ranks[0].comm_id, {});
  for (PeerId peer : group.peers) out_->to_workers.push_back({peer, start});
  AddNote(false, "group_starting",
          {{"group", group.name},
           {"ranks", absl::StrCat(group.ranks.size())},
           {"kv_blocks", absl::StrCat(blocks)}});
  RecheckQueue();
}

void RouterImpl::OnGroupDown(const GroupDown& message) {
  Group* group = groups_.FindByName(message.group);
  if (group == nullptr || group->incarnation != message.group_incarnation) {
    ++counters_.stale_group_messages;
    return;
  }
  LoseGroup(*group, message.reason, /*tell=*/false);
}

Group* RouterImpl::GroupThatSaid(PeerId peer, Incarnation incarnation) {
  Group* group = groups_.FindByPeer(peer);
  if (group != nullptr && group->complete() && group->incarnation == incarnation) return group;
  ++counters_.stale_group_messages;
  return nullptr;
}

void RouterImpl::OnLeave(PeerId peer, const Leave& message) {
  Group* group = GroupThatSaid(peer, message.group_incarnation);
  if (group == nullptr) return;
  if (group->peers[0] != peer) {
    ++counters_.stale_group_messages;
    return;
  }
  EndStreams(*group, "left");
  AddNote(false, "group_left", {{"group", group->name}});
  // One that was told to end by whoever watches over it is started again, as a rule.
  bool may_return = group->draining && !draining_;
  if (!may_return) {
    SetGroupTimer(*group, kTimeMax);
    groups_.Remove(*group);
    return RecheckQueue();
  }
  groups_.UnmapPeers(*group);
  group->state = GroupState::kLost;
  NoteLoad(*group);
  SetGroupTimer(*group, now_ + config_.group_memory);
}

void RouterImpl::OnLeaveSoon(PeerId peer, const LeaveSoon& message) {
  Group* group = GroupThatSaid(peer, message.group_incarnation);
  if (group == nullptr || group->draining) return;  // each of its ranks may say so
  group->draining = true;
  drain_due_ = true;
  drain_.taken = false;
  NoteLoad(*group);
  auto rank = std::ranges::find(group->peers, peer) - group->peers.begin();
  AddNote(false, "group_draining",
          {{"group", group->name},
           {"rank", absl::StrCat(rank)},
           {"running", absl::StrCat(group->running.size())}});
}

void RouterImpl::OnGroupTimer(const Timer& timer) {
  Group& group = *groups_.FindByNumber(timer.low);
  group.timer_at = kTimeMax;
  if (group.dead()) return ForgetGroup(group);
  if (group.state == GroupState::kJoining) {
    Duration waited = Silence(group.first_join, heard_.workers, config_.join_timeout);
    if (waited >= config_.join_timeout)
      return RefuseGroup(group, AbsentRanks(group, config_.join_timeout));
    AddNote(false, "group_waits_for_ranks",
            {{"group", group.name},
             {"absent", absl::StrJoin(group.AbsentRanks(), ",")},
             {"ranks", absl::StrCat(group.peers.size())}});
    return SetGroupTimer(group, now_ + config_.join_timeout - waited);
  }
  Duration allowed = group.live() ? config_.group_lease : config_.start_timeout;
  Duration silent = Silence(group.last_heard, heard_.workers, allowed);
  if (silent >= allowed) {
    return LoseGroup(group, absl::StrCat("no report for ", silent / kMillisecond, " ms"),
                     /*tell=*/true);
  }
  SetGroupTimer(group, now_ + allowed - silent);
}

void RouterImpl::SetGroupTimer(Group& group, Time at) {
  if (group.timer_at != kTimeMax) {
    timers_.Remove({group.timer_at, TimerKind::kGroup, 0, group.number});
  }
  group.timer_at = at;
  if (at != kTimeMax) timers_.Add({at, TimerKind::kGroup, 0, group.number});
}

void RouterImpl::ForgetGroup(Group& group) {
  AddNote(false, "group_forgotten", {{"group", group.name}});
  SetGroupTimer(group, kTimeMax);
  groups_.Remove(group);
  RecheckQueue();
}

Group* RouterImpl::AddGroup(const std::string& name) {
  if (Group* dead = groups_.Surplus()) ForgetGroup(*dead);
  return groups_.Add(name);
}

void RouterImpl::LoseGroup(Group& group, const std::string& reason, bool tell) {
  if (!group.complete() && group.state != GroupState::kJoining) return;
  AddNote(
      true, "group_lost",
      {{"group", group.name}, {"reason", reason}, {"running", absl::StrCat(group.running.size())}});
  if (tell) {
    for (PeerId peer : group.peers) {
      if (peer != 0) RefusePeer(peer, absl::StrCat("the group counts as lost: ", reason));
    }
    out_->given_up.push_back({group.name, group.incarnation, reason});
  }
  groups_.UnmapPeers(group);
  if (group.complete()) {
    ++counters_.lost_groups;
    EndStreams(group, "was lost");
  }
  group.state = GroupState::kLost;
  NoteLoad(group);
  SetGroupTimer(group, now_ + config_.group_memory);
}

void RouterImpl::EndStreams(Group& group, const std::string& reason) {
  Duration wait = std::max(kSecond, HalfQueueTime());
  KeepRate(group);
  group.forecast_old = true;
  // Taken out first: nothing that is asked of the group meanwhile may see what is gone.
  std::vector<Request*> ended = std::exchange(group.running, {});
  bool failed = false;  // some before its first token
  for (Request* request : ended) {
    Settle(*request);
    if (!request->answered && !request->AllClientDone()) {
      failed = failed || !request->got_token;
      CountError(ErrorCode::kUnavailable, *request->tenant);
      ErrorDetails details;
      details.retry_after_ms = Jittered(wait);
      SendToClient(request->client, RequestError{request->id, ErrorCode::kUnavailable,
                                                 absl::StrCat("group ", group.name, " ", reason,
                                                              " while it ran the request"),
                                                 details});
      CloseForClient(*request);
    }
    LetGo(*request);
  }
  if (failed) group.breaker.Failed(now_);
  group.closing.clear();
  group.heard.clear();
  group.pending = Commands{};
  group.pending_bytes = 0;
  group.ledger.reset();
  group.report = StepReport{};
  group.drift = 0;
  group.forecast_old = true;
  group.unanswered = Unanswered();
  drain_.taken = false;
}

}  // namespace kvern::router
