// From the queue to a group, and the messages at the end of a turn.
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {

void RouterImpl::DispatchWaiting() {
  while (!queue_.empty()) {
    Group* group = groups_.LeastLoaded(queue_.front().need);
    if (group == nullptr) return;  // strictly in order: nobody passes the head
    DispatchTo(*group, queue_.PopFront());
  }
}

void RouterImpl::DispatchTo(Group& group, Request& request) {
  KVERN_CHECK_LT(now_, request.ttft_deadline);  // timers ran
  group.ledger->Reserve(group.next_sequence, request.need);
  if (dispatch_times_.full()) dispatch_times_.PopFront();
  dispatch_times_.PushBack(now_);
  SetTimer(request, request.deadline);

  request.phase = Phase::kRunning;
  request.dispatched_at = now_;
  request.group = &group;
  request.group_index = group.running.size();
  group.running.push_back(&request);
  request.dispatch_sequence = group.next_sequence;
  ++request.epoch;
  request.choices.resize(request.n);
  for (Choice& choice : request.choices) {
    if (text_ == nullptr) continue;
    choice.filter = text_->NewFilter(request.stop, request.sampling.min_tokens);
  }

  Dispatch dispatch;
  dispatch.request_id = request.id;
  dispatch.epoch = request.epoch;
  dispatch.prompt = std::move(request.prompt);
  dispatch.n = request.n;
  dispatch.sampling = request.sampling;
  dispatch.eos_ids = config_.eos_ids;
  group.pending.dispatches.push_back(std::move(dispatch));
}

void RouterImpl::DrainGroups() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    // Not in the message that brings work: whether it is still taken must not hang on an order.
    bool brings_work = !group.pending.dispatches.empty();
    if (!group.live() || group.drain_sent || brings_work) continue;
    group.pending.drain = true;
    group.drain_sent = true;
  }
}

void RouterImpl::FlushCommands() {
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (!group.live() || !group.HasPending()) continue;
    group.pending.group_incarnation = group.incarnation;
    group.pending.sequence = group.next_sequence++;
    out_->to_workers.push_back({group.peers[0], std::move(group.pending)});
    group.pending = Commands{};
  }
}

}  // namespace kvern::router
