// From the queue to a group, and the messages at the end of a turn.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// Behind a head that does not fit, so many are looked at for one that does.
constexpr size_t kBackfillWindow = 8;
// So many may pass a head, then it is served before anyone else (ageing).
constexpr uint32_t kMaxPassed = 16;
// One that passes is small beside the head, so that it hardly delays it.
constexpr uint64_t kBackfillShare = 4;

// What a dispatch takes in a message, at most.
uint64_t DispatchBytes(const Request& request, size_t eos_ids) {
  constexpr uint64_t kTables = 512;  // its own and the one of its sampling parameters
  const SamplingParams& sampling = request.sampling;
  return kTables + sizeof(uint32_t) * (request.prompt.size() + eos_ids) +
         sizeof(uint32_t) * sampling.stop_token_ids.size() +
         2 * sizeof(uint32_t) * sampling.logit_bias.size();
}

}  // namespace

void RouterImpl::DispatchWaiting() {
  if (!dispatch_due_) return;
  dispatch_due_ = waits_for_service_ = false;
  while (DispatchOne()) {
  }
}

bool RouterImpl::DispatchOne() {
  uint64_t most = kAnySize;
  Request* larger = nullptr;  // the head that has no use for groups of so many blocks
  do {
    FindCandidates(most);
    if (candidates_.empty()) return false;  // all are at their quota
    Request& head = *candidates_[0];
    if (Group* group = GroupFor(head, most); group != nullptr) {
      if (TooLate(*group, head)) return true;
      NoteTurnOf(head, most, larger);
      queue_.Remove(head);
      DispatchTo(*group, head);
      return true;
    }
    if (Backfill(head, most, larger)) return true;
    // Groups that the head cannot use have a queue of their own, of those that fit there.
    larger = &head;
    most = LargestBelow(head.need.tokens_pool());
  } while (most > 0);
  return false;
}

void RouterImpl::NoteTurnOf(const Request& least, uint64_t most, Request* larger) {
  if (larger == nullptr) return queue_.AdvanceTo(least);
  queue_.Bypass(*larger, most, least);
}

uint64_t RouterImpl::LargestBelow(uint64_t blocks) const {
  uint64_t largest = 0;
  if (groups_.SmallestTotal() >= blocks) return largest;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_.at(i);
    if (!WorkHold(group).none()) continue;
    uint64_t total = group.ledger->total().tokens_pool();
    if (total < blocks) largest = std::max(largest, total);
  }
  return largest;
}

void RouterImpl::FindCandidates(uint64_t most) {
  queue_.Candidates(
      kBackfillWindow, most, [this](const Request& r) { return QuotaHold(r).none(); }, candidates_);
}

Hold RouterImpl::QuotaHold(const Request& request, uint64_t more) const {
  const Tenant& tenant = *request.tenant;
  uint64_t most = tenant.config.max_blocks;
  uint64_t running = tenant.running_blocks + more;
  if (most == 0 || running + request.need.tokens_pool() <= most) return {};
  return {Why::kQuota, running, most};
}

Hold RouterImpl::PassHold(const Request& head, const Request& request) const {
  if (head.passed >= kMaxPassed) return {Why::kPassed, head.passed, kMaxPassed};
  uint64_t most = head.need.tokens_pool() / kBackfillShare;
  if (request.need.tokens_pool() > most) return {Why::kLarge, request.need.tokens_pool(), most};
  if (Hold ahead = AheadHold(request); !ahead.none()) return ahead;
  return QuotaHold(request);
}

const Request& RouterImpl::LeastServed(size_t band) const {
  return **std::ranges::find_if(candidates_, [&](const Request* r) { return r->band == band; });
}

Hold RouterImpl::AheadHold(const Request& request) const {
  const Request& least = LeastServed(request.band);
  uint64_t service = request.tenant->lines[request.band].service;
  uint64_t ahead = service - least.tenant->lines[request.band].service;
  // What its next request takes at worst: no more, however often its heads are passed.
  uint64_t most = ServiceOf(*least.tenant, kOutputWeight * kBlockSize * least.need.tokens_pool());
  if (ahead <= most) return {};
  return {Why::kAhead, ServedTokens(ahead), ServedTokens(most)};
}

bool RouterImpl::TooLate(const Group& group, Request& request) {
  if (group.running.empty()) return false;  // never by prediction alone
  Duration prefill = groups_.load(group.index).FirstTokenTime(now_, request.prompt_tokens);
  if (now_ + prefill <= request.ttft_deadline) return false;
  Refusal refusal{ErrorCode::kDeadlineExceeded,
                  absl::StrCat(request.TtftName(), " would pass: it waited ",
                               (now_ - request.arrival) / kMillisecond,
                               " ms, its first token is expected in ", prefill / kMillisecond),
                  {}};
  refusal.details.retry_after_ms = Jittered(HalfQueueTime());
  Fail(request, std::move(refusal));
  return true;
}

bool RouterImpl::Backfill(Request& head, uint64_t most, Request* larger) {
  for (size_t i = 1; i < candidates_.size(); ++i) {
    Request& request = *candidates_[i];
    Hold hold = PassHold(head, request);
    waits_for_service_ = waits_for_service_ || hold.why == Why::kAhead;
    if (!hold.none()) continue;
    Group* group = GroupFor(request, most);
    if (group == nullptr || now_ >= request.ttft_deadline) continue;
    if (TooLate(*group, request)) return true;
    ++head.passed;
    NoteTurnOf(LeastServed(request.band), most, larger);
    queue_.Remove(request);
    DispatchTo(*group, request);
    return true;
  }
  return false;
}

void RouterImpl::DispatchTo(Group& group, Request& request) {
  KVERN_CHECK_LT(now_, request.ttft_deadline);  // timers ran
  uint64_t bytes = DispatchBytes(request, config_.eos_ids.size());
  if (group.pending.dispatches.size() == kMaxDispatches ||
      group.pending_bytes + bytes > kMaxDispatchedBytes) {
    SendCommands(group);
  }
  group.pending_bytes += bytes;
  group.ledger->Reserve(group.next_sequence, request.need, request.guaranteed());
  if (!request.guaranteed()) {
    group.forecast.Insert({request.prompt_tokens, request.expected_tokens, request.n});
    group.largest_standard = Larger(group.largest_standard, request.need);
  }
  uint64_t blocks =
      request.guaranteed() ? request.need.tokens_pool() : ExpectedFinalBlocks(request);
  drain_.free_blocks -= std::min(drain_.free_blocks, blocks);
  group.unanswered.Add(request.prompt_tokens);
  request.tenant->running_blocks += request.need.tokens_pool();
  Duration whole = static_cast<Duration>(request.expected_tokens) * group.steps.MeanStep(now_);
  NoteQuotaRelease(request, whole, whole);
  Charge(*request.tenant, request.band, request.prompt_tokens);
  SetTimer(request, request.deadline);

  request.phase = Phase::kRunning;
  request.dispatched_at = now_;
  request.group = &group;
  request.group_index = group.running.size();
  group.running.push_back(&request);
  request.dispatch_sequence = group.next_sequence;
  request.got_token = false;
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
  dispatch.service_class = request.service_class;
  group.pending.dispatches.push_back(std::move(dispatch));
  groups_.NotePending(group);
  NoteLoad(group);
}

void RouterImpl::EndHopeless() {
  if (!draining_ || queue_.empty()) return;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (groups_.at(i).open()) return;
  }
  std::vector<Request*> waiting;
  queue_.ForEach([&](Request& request) { waiting.push_back(&request); });
  for (Request* request : waiting) {
    Refusal refusal{ErrorCode::kUnavailable, "the router is draining, and no group is left", {}};
    refusal.details.retry_after_ms = Jittered(kSecond);
    Fail(*request, std::move(refusal));
  }
}

void RouterImpl::DrainGroups() {
  bool all = draining_ && queue_.entries() == 0;
  if (!all && !drain_due_) return;
  drain_due_ = false;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (!group.live() || group.drain_sent || !(all || group.draining)) continue;
    // Not in the message that brings work: whether it is still taken must not hang on an order.
    if (!group.pending.dispatches.empty()) {
      drain_due_ = true;
      continue;
    }
    group.pending.drain = true;
    group.draining = group.drain_sent = true;
    groups_.NotePending(group);
    NoteLoad(group);
  }
}

void RouterImpl::FlushCommands() {
  for (Group* group : groups_.TakePending()) {
    if (group->live() && group->HasPending()) SendCommands(*group);
  }
}

void RouterImpl::SendCommands(Group& group) {
  group.pending.group_incarnation = group.incarnation;
  group.pending.sequence = group.next_sequence++;
  out_->to_workers.push_back({group.peers[0], std::move(group.pending)});
  group.pending = Commands{};
  group.pending_bytes = 0;
}

}  // namespace kvern::router
