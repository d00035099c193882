// What groups report: tokens, refusals, their own count of blocks. Everything is checked against
// what was dispatched; a group that breaks the protocol is lost, and only that group.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "cluster/base/prefetch.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// Requests of a report whose memory is asked for before it is needed.
constexpr size_t kRequestsAhead = 4;

double Milliseconds(Duration duration) { return static_cast<double>(duration) / 1e6; }

// What the worker may say about logprobs, given what was asked.
bool LogprobsMatch(const Request& request, const TokenRun& run, uint32_t vocab_size) {
  if (!request.sampling.logprobs) return run.logprobs.empty();
  if (run.logprobs.size() != run.token_ids.size()) return false;
  for (size_t i = 0; i < run.logprobs.size(); ++i) {
    const TokenLogprob& entry = run.logprobs[i];
    if (entry.token_id != run.token_ids[i]) return false;
    if (entry.top.size() != *request.sampling.logprobs) return false;
    for (const auto& [id, logprob] : entry.top) {
      if (id >= vocab_size) return false;
    }
  }
  return true;
}

}  // namespace

void RouterImpl::PrefetchReport(PeerId rank, size_t stage) {
  const Group* group = groups_.FindByPeer(rank);
  if (group == nullptr) return;
  if (stage == 0) return Prefetch(group);
  if (stage == 1) {
    Prefetch(group->peers.data());
    Prefetch(group->ranks.data());
    Prefetch(group->heard.data());
    return;
  }
  for (size_t i = 0; i < std::min(kRequestsAhead, group->heard.size()); ++i) {
    Prefetch(group->heard[i], Request::kHotBytes);
  }
}

void RouterImpl::OnReport(PeerId peer, StepReport report) {
  Group* group = groups_.FindByPeer(peer);
  if (group == nullptr) {  // of a lost group, or from before this router started
    return RefusePeer(peer, "this connection speaks for no live group");
  }
  std::string fault = ReportFault(*group, report);
  if (fault.empty() && group->peers[0] != peer) fault = "a rank other than 0 reported";
  for (size_t i = 0; fault.empty() && i < report.nacks.size(); ++i) {
    fault = TakeNack(*group, report.nacks[i], report.acked_command);
  }
  uint64_t tokens = 0;  // before they are taken
  for (const TokenRun& run : report.runs) tokens += run.token_ids.size();
  if (fault.empty()) fault = TakeRuns(*group, report);
  if (!fault.empty()) return LoseGroup(*group, absl::StrCat("bad report: ", fault), /*tell=*/true);

  Learn(*group, report, tokens);
  if (!group->live()) {
    drain_.taken = false;
    dispatch_due_ = true;
    group->state = GroupState::kLive;
    SetGroupTimer(*group, now_ + config_.group_lease);
    drain_due_ = drain_due_ || group->draining;  // told to leave before it was live
    AddNote(false, "group_live", {{"group", group->name}});
  }
  Acknowledge(*group, report.acked_command);
  group->drift = group->ledger->Drift(report.reserved_blocks);
  group->last_report = now_;
  group->last_heard = Listened();
  report.runs.clear();
  report.nacks.clear();
  group->report = std::move(report);
  group->unanswered.Settle(FirstPrefill(group->report));
  NoteLoad(*group);
}

std::string RouterImpl::ReportFault(const Group& group, const StepReport& report) const {
  if (!group.complete()) return "before all ranks joined";
  if (report.group_incarnation != group.incarnation) {
    return absl::StrCat("group_incarnation is ", report.group_incarnation, ", joined as ",
                        group.incarnation);
  }
  if (report.step_id < group.report.step_id) {
    return absl::StrCat("step_id is ", report.step_id, ", before: ", group.report.step_id);
  }
  if (report.acked_command < group.acked || report.acked_command >= group.next_sequence) {
    return absl::StrCat("acked_command is ", report.acked_command, ", allowed: ", group.acked,
                        " to ", group.next_sequence - 1);
  }
  // A reservation starts before the dispatch is sent and ends after the worker let go.
  uint64_t total = group.ledger->total().tokens_pool();
  uint64_t most = group.ledger->worst_case().tokens_pool();
  if (report.used_blocks > std::min(total, report.reserved_blocks) ||
      report.reserved_blocks > most) {
    return absl::StrCat("used_blocks ", report.used_blocks, ", reserved_blocks ",
                        report.reserved_blocks, " of ", most, ", the group has ", total);
  }
  return "";
}

std::string RouterImpl::TakeRuns(Group& group, StepReport& report) {
  size_t place = 0;  // in the list of the report before
  hearing_.clear();
  for (size_t i = 0; i < std::min(kRequestsAhead, group.heard.size()); ++i) {
    Prefetch(group.heard[i], Request::kHotBytes);
  }
  for (TokenRun& run : report.runs) {
    std::vector<Request*>& heard = group.heard;
    while (place < heard.size() && heard[place] == nullptr) ++place;
    bool same = place < heard.size() && heard[place]->id == run.request_id;
    Request* likely = same ? heard[place++] : nullptr;
    Request* request = FindRunning(group, likely, run.request_id, run.epoch);
    size_t ahead = place + kRequestsAhead;
    if (ahead < heard.size()) Prefetch(heard[ahead], Request::kHotBytes);
    if (request == nullptr) {
      ++counters_.stale_runs;
      continue;
    }
    hearing_.push_back(request);
    std::string fault = TakeRun(group, *request, run, report.acked_command);
    if (!fault.empty()) return fault;
  }
  group.heard.swap(hearing_);
  return "";
}

Request* RouterImpl::FindRunning(const Group& group, Request* likely, const RequestId& id,
                                 Epoch epoch) {
  if (likely == nullptr) {
    std::unique_ptr<Request>* found = requests_.Find(id);
    if (found == nullptr) return nullptr;
    likely = found->get();
  }
  Request& request = *likely;
  bool current =
      request.phase == Phase::kRunning && request.group == &group && request.epoch == epoch;
  return current ? &request : nullptr;
}

std::string RouterImpl::TakeNack(Group& group, const Nack& nack, uint64_t acked) {
  Request* request = FindRunning(group, nullptr, nack.request_id, nack.epoch);
  if (request == nullptr) {
    ++counters_.stale_runs;
    return "";
  }
  if (request->dispatch_sequence > acked) return "a nack before the dispatch is acknowledged";
  bool its_fault = nack.code != ErrorCode::kInvalidArgument && nack.code != ErrorCode::kNeverFits;
  AddNote(its_fault, "nack",
          {{"group", group.name},
           {"request_id", nack.request_id.ToString()},
           {"code", std::string(ErrorCodeName(nack.code))}});
  for (Choice& choice : request->choices) choice.worker_done = true;
  if (its_fault && !request->got_token) group.breaker.Failed(now_);
  if (!request->answered) {
    ErrorCode code = nack.code == ErrorCode::kNone ? ErrorCode::kInternal : nack.code;
    Fail(*request, {code, nack.message, {}});
    request->cancelled_at = -1;  // nothing had to be stopped
  }
  group.ledger->Acknowledge(acked);
  Release(*request);
  return "";
}

std::string RouterImpl::TakeRun(Group& group, Request& request, TokenRun& run, uint64_t acked) {
  if (request.dispatch_sequence > acked) return "tokens before the dispatch is acknowledged";
  if (run.choice >= request.n) {
    return absl::StrCat("choice is ", run.choice, ", allowed: below ", request.n);
  }
  Choice& choice = request.choices[run.choice];
  if (run.position < choice.worker_next) {
    ++counters_.stale_runs;
    return "";
  }
  if (std::string fault = RunFault(request, run); !fault.empty()) return fault;
  choice.worker_next += static_cast<uint32_t>(run.token_ids.size());
  choice.worker_done = run.finish_reason != FinishReason::kNone;
  if (!request.got_token && !run.token_ids.empty()) GotToken(group, request);
  Charge(*request.tenant, request.band, kOutputWeight * run.token_ids.size());
  if (choice.worker_done && !choice.client_done && choice.worker_next > 0) {
    ObserveLength(request, choice.worker_next);
  }
  // Tokens past a stop string are nobody's.
  if (!request.answered && !choice.client_done) Deliver(request, run);
  if (request.WorkerReleased(group.acked)) {
    group.ledger->Acknowledge(acked);
    Release(request);
  }
  return "";
}

std::string RouterImpl::RunFault(const Request& request, const TokenRun& run) const {
  const Choice& choice = request.choices[run.choice];
  if (choice.worker_done) return "tokens after a choice's end";
  if (run.position != choice.worker_next) {
    return absl::StrCat("position is ", run.position, ", expected: ", choice.worker_next);
  }
  uint64_t end = uint64_t{run.position} + run.token_ids.size();
  uint32_t max_tokens = request.sampling.max_tokens;
  if (end > max_tokens) return absl::StrCat("more tokens than max_tokens, ", max_tokens);
  if (end == max_tokens && run.finish_reason == FinishReason::kNone) {
    return "a choice goes on after max_tokens";
  }
  if (end == 0 && run.finish_reason != FinishReason::kNone) return "a choice ends without a token";
  for (uint32_t id : run.token_ids) {
    if (id >= config_.vocab_size) {
      return absl::StrCat("token id is ", id, ", allowed: below ", config_.vocab_size);
    }
  }
  if (!LogprobsMatch(request, run, config_.vocab_size))
    return "logprobs differ from what was asked";
  if (std::holds_alternative<std::string>(run.stop_reason)) return "stop_reason is a string";
  return "";
}

void RouterImpl::Deliver(Request& request, TokenRun& run) {
  Choice& choice = request.choices[run.choice];
  if (run.token_ids.empty() && run.finish_reason == FinishReason::kNone) return;
  Delta delta;
  delta.request_id = request.id;
  delta.choice = run.choice;
  delta.position = run.position;
  delta.token_ids = std::move(run.token_ids);
  delta.logprobs = std::move(run.logprobs);
  delta.finish_reason = run.finish_reason;
  delta.stop_reason = std::move(run.stop_reason);
  if (choice.filter != nullptr) {
    TextFilter::Piece piece =
        choice.filter->Append(delta.token_ids, run.finish_reason != FinishReason::kNone,
                              run.finish_reason == FinishReason::kStop);
    delta.text = std::move(piece.text);
    if (piece.stopped) {
      KVERN_CHECK_LE(piece.tokens_kept, delta.token_ids.size());
      delta.token_ids.resize(piece.tokens_kept);
      if (!delta.logprobs.empty()) delta.logprobs.resize(piece.tokens_kept);
      delta.finish_reason = FinishReason::kStop;
      delta.stop_reason = std::move(piece.stop_string);
      if (!choice.worker_done) ObserveLength(request, choice.worker_next);
      CancelChoice(request, run.choice);  // unless the worker is done with it
    }
  }
  SendDelta(request, std::move(delta));
}

void RouterImpl::SendDelta(Request& request, Delta&& delta) {
  Choice& choice = request.choices[delta.choice];
  if (request.first_delta < 0) request.first_delta = now_;
  if (choice.sent > 0) request.itl_max = std::max(request.itl_max, now_ - choice.last_delivery);
  request.last_delta = now_;
  choice.last_delivery = now_;
  choice.sent += static_cast<uint32_t>(delta.token_ids.size());
  choice.client_done = delta.finish_reason != FinishReason::kNone;
  counters_.generated_tokens += delta.token_ids.size();
  Client& client = *clients_.Find(request.client);
  if (request.kept == nullptr && HasCredit(client, request, delta)) {
    Forward(client, request, std::move(delta));
  } else {
    Keep(client, request, std::move(delta));
  }
}

Usage RouterImpl::UsageOf(const Request& request) const {
  Usage usage;
  usage.prompt_tokens = request.prompt_tokens;
  uint32_t longest = 0;
  for (const Choice& choice : request.choices) {
    usage.completion_tokens += choice.sent;
    longest = std::max(longest, choice.sent);
  }
  usage.queue_ms = Milliseconds(request.dispatched_at - request.arrival);
  usage.ttft_ms = Milliseconds(request.first_delta - request.arrival);
  if (longest > 1) {
    usage.tpot_ms = Milliseconds(request.last_delta - request.first_delta) / (longest - 1);
  }
  usage.itl_ms_max = Milliseconds(request.itl_max);
  return usage;
}

void RouterImpl::GotToken(Group& group, Request& request) {
  request.got_token = true;
  counters_.prompt_tokens += request.prompt_tokens;
  dispatch_due_ = dispatch_due_ || group.breaker.open();  // it closes: what waited for that may go
  group.breaker.FirstToken();
  group.unanswered.GotToken(request.prompt_tokens, request.n);
}

void RouterImpl::ObserveLength(Request& request, uint32_t tokens) {
  request.tenant->lengths.Observe(tokens);
  lengths_.Observe(tokens);
}

void RouterImpl::Learn(Group& group, const StepReport& report, uint64_t tokens) {
  const StepReport& before = group.report;
  group.forecast_old = true;
  // It was not trusted, and may be now.
  bool was_stale = now_ - group.last_report >= config_.group_lease / 2;
  dispatch_due_ = dispatch_due_ || was_stale || group.breaker.open();
  if (group.prefill_full || waits_for_service_) dispatch_due_ = true;
  group.prefill_full = false;
  uint64_t steps = report.step_id - before.step_id;
  bool grows = report.step_us >= before.step_us && report.prefill_tokens >= before.prefill_tokens;
  if (steps == 0 || !grows) return;
  group.steps.Observe(now_, steps, report.step_us - before.step_us,
                      report.prefill_tokens - before.prefill_tokens, tokens);
  const StepSpeed& speed = group.steps.speed();
  decode_cost_.Observe(speed.rows, speed.MeanDecode(now_));
  group.slowness = decode_cost_.Slowness(speed, now_);
}

void RouterImpl::Acknowledge(Group& group, uint64_t acked) {
  group.ledger->Acknowledge(acked);
  if (acked == group.acked) return;
  group.acked = acked;
  std::vector<Request*> released;
  for (Request* request : group.closing) {
    if (request->WorkerReleased(acked)) released.push_back(request);
  }
  for (Request* request : released) Release(*request);
}

}  // namespace kvern::router
