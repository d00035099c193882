// Every way a request ends. The client's side and the worker's side end on their own; whichever is
// last destroys the request, so blocks are released exactly once.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// Observations kept between two snapshots of the status; more are dropped.
constexpr size_t kMaxObservations = 8192;

double Seconds(Duration duration) { return static_cast<double>(duration) / 1e9; }

void Observe(std::vector<double>& observations, Duration duration) {
  if (observations.size() < kMaxObservations) observations.push_back(Seconds(duration));
}

}  // namespace

void RouterImpl::Fail(Request& request, Refusal refusal) {
  KVERN_CHECK(!request.answered) << request.id.ToString();
  CountError(refusal.code, *request.tenant);
  if (refusal.code == ErrorCode::kCancelled) ++counters_.cancelled;
  SendError(request.client, *request.tenant, request.id, std::move(refusal));
  CloseForClient(request);
  Abandon(request);
}

void RouterImpl::CountError(ErrorCode code, Tenant& tenant) {
  ++counters_.errors[static_cast<size_t>(code)];
  ++tenant.errors[static_cast<size_t>(code)];
}

void RouterImpl::SendError(PeerId client, Tenant& tenant, const RequestId& id, Refusal refusal) {
  if (refusal.details.retry_after_ms) refusal.details.credit = CreditOf(tenant);
  SendToClient(client, RequestError{id, refusal.code, std::move(refusal.message), refusal.details});
}

void RouterImpl::Complete(Request& request) {
  ++counters_.completed;
  ++request.tenant->completed;
  Observe(counters_.queue_seconds, request.dispatched_at - request.arrival);
  Observe(counters_.ttft_seconds, request.first_delta - request.arrival);
  uint32_t longest = 0;
  for (const Choice& choice : request.choices) longest = std::max(longest, choice.sent);
  if (longest > 1) {
    Observe(counters_.tpot_seconds, (request.last_delta - request.first_delta) / (longest - 1));
  }
  CloseForClient(request);
}

void RouterImpl::CloseForClient(Request& request) {
  request.answered = true;
  SetTimer(request, kTimeMax);
  Client& client = *clients_.Find(request.client);
  DropKept(client, request);
  clients_.Close(client, request, now_);
}

void RouterImpl::Abandon(Request& request) {
  switch (request.phase) {
    case Phase::kTokenizing:  // until the text pool lets go: Tokenized ends it
      queue_.RemoveText(request);
      out_->withdrawn.push_back(request.id);
      ++withdrawn_;
      return;
    case Phase::kArrived:
      queue_.GiveRoomBack(request);
      return Destroy(request);
    case Phase::kQueued:
      queue_.Remove(request);
      dispatch_due_ = true;
      return Destroy(request);
    case Phase::kUnread:
      return Destroy(request);
    case Phase::kRunning:
      request.cancelled_at = now_;
      for (uint32_t choice = 0; choice < request.n; ++choice) CancelChoice(request, choice);
      return;
  }
}

void RouterImpl::CancelChoice(Request& request, uint32_t index) {
  Choice& choice = request.choices[index];
  if (choice.worker_done || choice.cancel_sequence != 0) return;
  Group& group = *request.group;
  if (group.pending.cancels.size() == kMaxCancels) SendCommands(group);
  choice.cancel_sequence = group.next_sequence;
  if (!request.closing) {
    request.closing = true;
    group.closing.push_back(&request);
  }
  std::vector<CancelDispatch>& cancels = group.pending.cancels;
  bool whole = request.answered && !cancels.empty() && cancels.back().request_id == request.id &&
               cancels.back().all_choices;
  if (whole) return;  // the cancel of an earlier choice covers this one
  cancels.push_back({request.id, request.epoch, request.answered, request.answered ? 0 : index});
  groups_.NotePending(group);
}

void RouterImpl::Settle(Request& request) {
  dispatch_due_ = true;
  request.tenant->running_blocks -= request.need.tokens_pool();
  UseQuota(*request.tenant, request.need.tokens_pool(), now_ - request.dispatched_at, now_);
}

void RouterImpl::Release(Request& request) {
  Group& group = *request.group;
  group.ledger->Release(request.need, request.guaranteed());
  group.forecast_old = true;
  if (!request.got_token) group.unanswered.Drop(request.prompt_tokens);
  Settle(request);
  if (request.cancelled_at >= 0) {
    Observe(counters_.cancel_to_free_seconds, now_ - request.cancelled_at);
  }
  std::erase(group.closing, &request);
  std::ranges::replace(group.heard, &request, nullptr);
  std::ranges::replace(hearing_, &request, nullptr);
  // The id is free from here on: a cancel not yet sent must not meet its next use.
  std::erase_if(group.pending.cancels,
                [&](const CancelDispatch& cancel) { return cancel.request_id == request.id; });
  group.running[request.group_index] = group.running.back();
  group.running[request.group_index]->group_index = request.group_index;
  group.running.pop_back();
  LetGo(request);
}

void RouterImpl::LetGo(Request& request) {
  if (request.answered) return Destroy(request);
  KVERN_CHECK(request.kept != nullptr && request.AllClientDone()) << request.id.ToString();
  request.phase = Phase::kUnread;
  request.group = nullptr;
}

void RouterImpl::Destroy(Request& request) {
  KVERN_CHECK(request.answered) << request.id.ToString();
  RequestId id = request.id;
  requests_.Erase(id);
}

}  // namespace kvern::router
