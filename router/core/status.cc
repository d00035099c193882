// What operators see, and the check of the router's own books.
#include <algorithm>
#include <map>

#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {

GroupStatus RouterImpl::StatusOf(Group& group, Time now) const {
  GroupStatus status;
  status.name = group.name;
  status.live = group.live();
  status.ranks = group.ranks;
  if (group.state == GroupState::kJoining) status.absent_ranks = group.AbsentRanks();
  if (!group.live()) return status;
  status.model = group.ranks[0].model;
  status.draining = group.draining;
  status.total_blocks = group.ledger->total().tokens_pool();
  status.reserved_blocks = ReservedBlocks(group).tokens_pool();
  status.worst_case_blocks = group.ledger->worst_case().tokens_pool();
  status.preemptions = group.report.preemptions;
  status.recomputed_tokens = group.report.recomputed_tokens;
  status.waiting = group.report.waiting;
  status.used_blocks = group.report.used_blocks;
  status.drift_blocks = group.drift;
  status.running = static_cast<uint32_t>(group.running.size());
  status.report_age = now - group.last_report;
  status.ages = group.report.ages;
  for (RankAge& age : status.ages) {  // a group that hangs reports no more
    age.step_age_ms += static_cast<uint64_t>(status.report_age / kMillisecond);
  }
  return status;
}

RouterStatus RouterImpl::Status(Time now) {
  RouterStatus status;
  for (size_t i = 0; i < groups_.size(); ++i) status.groups.push_back(StatusOf(groups_.at(i), now));
  status.tenants = tenants_.Status();
  status.counters = counters_;
  counters_.cancel_to_free_seconds.clear();
  counters_.ttft_seconds.clear();
  counters_.tpot_seconds.clear();
  counters_.queue_seconds.clear();
  status.queue_entries = queue_.entries();
  status.queue_bytes = queue_.bytes();
  if (!queue_.empty()) status.queue_age = now - queue_.OldestArrival();
  status.clients = clients_.size();
  status.paused_streams = paused_.size();
  status.kept_bytes = kept_bytes_;
  status.draining = draining_;
  return status;
}

RouterBooks RouterImpl::Books(Time now, PeerId rank) {
  RouterBooks books;
  books.queue_entries = queue_.entries();
  books.queue_bytes = queue_.bytes();
  const Group* group = groups_.FindByPeer(rank);
  if (group == nullptr || !group->live()) return books;
  books.live = true;
  books.total_blocks = group->ledger->total().tokens_pool();
  books.worst_case_blocks = group->ledger->worst_case().tokens_pool();
  books.drift_blocks = group->drift;
  books.running = static_cast<uint32_t>(group->running.size());
  books.report_age = now - group->last_report;
  books.failures = group->breaker.failures();
  return books;
}

uint64_t RouterImpl::ReservedBlocks(PeerId rank) {
  Group* group = groups_.FindByPeer(rank);
  return group == nullptr || !group->live() ? 0 : ReservedBlocks(*group).tokens_pool();
}

CapacityReply RouterImpl::Capacity() {
  CapacityReply reply;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (!group.open()) continue;
    GroupCapacity capacity;
    capacity.id = group.name;
    capacity.model = group.ranks[0].model;
    capacity.total_blocks = group.ledger->total().tokens_pool();
    capacity.reserved_blocks = ReservedBlocks(group).tokens_pool();
    capacity.used_blocks = group.report.used_blocks;
    for (const Join& rank : group.ranks) {
      capacity.ranks.push_back({rank.rank, rank.bytes_per_token});
    }
    reply.groups.push_back(std::move(capacity));
  }
  return reply;
}

void RouterImpl::AuditGroup(const Group& group) const {
  KVERN_CHECK(&groups_.at(group.index) == &group) << group.name;
  KVERN_CHECK(groups_.load(group.index) == LoadOf(group)) << group.name;
  KVERN_CHECK(group.listed || !group.HasPending()) << group.name;
  if (!group.complete()) {
    KVERN_CHECK(group.running.empty()) << group.name;
    return;
  }
  PoolBlocks worst_case;
  PoolBlocks guaranteed;
  Unanswered unanswered;
  unanswered.short_prompt = group.unanswered.short_prompt;
  for (size_t i = 0; i < group.running.size(); ++i) {
    const Request& request = *group.running[i];
    KVERN_CHECK(request.phase == Phase::kRunning);
    KVERN_CHECK(request.group == &group);
    KVERN_CHECK_EQ(request.group_index, i);
    KVERN_CHECK(!request.WorkerReleased(group.acked)) << request.id.ToString();
    worst_case += request.need;
    if (request.guaranteed()) guaranteed += request.need;
    if (!request.got_token) {
      unanswered.Add(request.prompt_tokens);
    }
  }
  KVERN_CHECK_EQ(worst_case, group.ledger->worst_case()) << group.name;
  KVERN_CHECK_EQ(guaranteed, group.ledger->guaranteed()) << group.name;
  KVERN_CHECK(guaranteed.Within(group.ledger->total())) << group.name;
  KVERN_CHECK_EQ(unanswered.requests, group.unanswered.requests) << group.name;
  KVERN_CHECK_EQ(unanswered.tokens, group.unanswered.tokens) << group.name;
  KVERN_CHECK_EQ(unanswered.short_tokens, group.unanswered.short_tokens) << group.name;
}

void RouterImpl::AuditTenants() const {
  std::map<const Tenant*, uint64_t> running;
  for (size_t i = 0; i < groups_.size(); ++i) {
    for (const Request* request : groups_.at(i).running)
      running[request->tenant] += request->need.tokens_pool();
  }
  uint64_t accepted = 0;
  uint64_t completed = 0;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& tenant = tenants_.at(i);
    KVERN_CHECK_EQ(tenant.running_blocks, running[&tenant]) << tenant.config.name;
    accepted += tenant.accepted;
    completed += tenant.completed;
  }
  KVERN_CHECK_EQ(accepted, counters_.accepted);
  KVERN_CHECK_EQ(completed, counters_.completed);
}

void RouterImpl::Audit() const {
  queue_.Audit();
  for (size_t i = 0; i < groups_.size(); ++i) AuditGroup(groups_.at(i));
  AuditFlow();
  AuditTenants();
}

}  // namespace kvern::router
