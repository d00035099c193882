#include "worker/core/scheduler.h"

#include <algorithm>
#include <utility>

#include "cluster/base/check.h"
#include "cluster/base/prefetch.h"
#include "cluster/capacity/kv_budget.h"
#include "worker/core/admission.h"
#include "worker/core/group_state.h"
#include "worker/core/room.h"
#include "worker/core/step_builder.h"

namespace kvern {
namespace {

// Rows whose memory is asked for before it is needed: a step touches much, and each a little.
constexpr size_t kRowsAhead = 8;

// The `row`-th will be committed soon, and the one halfway there sooner.
void ExpectRow(const std::vector<PlanInFlight::Row>& rows, size_t row) {
  if (row < rows.size()) Prefetch(rows[row].sequence);
  size_t nearer = row - kRowsAhead / 2;
  if (nearer >= rows.size()) return;
  const Sequence& sequence = *rows[nearer].sequence;
  Prefetch(sequence.request, Request::kHotBytes);
  Prefetch(sequence.output.data() + sequence.output.size());
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config) : state_(std::make_unique<GroupState>(config)) {
  KVERN_CHECK(config.max_batch_tokens > 0 && config.max_sample_rows > 0);
  KVERN_CHECK_LE(config.plans_in_flight, kMaxPlansInFlight);
}

Scheduler::~Scheduler() = default;

void Scheduler::Accept(Time /*now*/, const Dispatch& dispatch, WorkerEffects& effects) {
  if (std::optional<Nack> nack = CheckDispatch(*state_, dispatch)) {
    effects.nacks.push_back(*std::move(nack));
    return;
  }
  auto request = std::make_unique<Request>();
  request->dispatch = dispatch;
  request->age = state_->next_age++;
  request->guaranteed = dispatch.service_class == ServiceClass::kGuaranteed;
  request->reserved =
      BlocksNeeded(dispatch.prompt.size(), dispatch.sampling.max_tokens, dispatch.n, kBlockSize);
  for (uint32_t choice : UnfinishedChoices(dispatch)) {
    auto sequence = std::make_unique<Sequence>();
    sequence->request = request.get();
    sequence->choice = choice;
    if (!dispatch.emitted.empty()) sequence->output = std::move(request->dispatch.emitted[choice]);
    request->live.push_back(std::move(sequence));
  }
  request->dispatch.emitted.clear();
  request->forked = request->live.size() == 1;
  request->ending = EndingBits(request->dispatch);
  state_->reserved += request->reserved;
  if (request->guaranteed) state_->reserved_by_class += request->reserved;
  state_->running += static_cast<uint32_t>(request->live.size());
  state_->AddWaiting(*request);
  state_->requests.Insert(dispatch.request_id, std::move(request));
}

void Scheduler::Cancel(Time /*now*/, const CancelDispatch& cancel, WorkerEffects& /*effects*/) {
  std::unique_ptr<Request>* found = state_->requests.Find(cancel.request_id);
  if (found == nullptr || (*found)->dispatch.epoch != cancel.epoch) return;
  Request& request = **found;
  // From the last choice on: the request is gone after its last one, which is then choice index 0.
  for (size_t i = request.live.size(); i-- > 0;) {
    bool last = request.live.size() == 1;
    if (!cancel.all_choices && request.live[i]->choice != cancel.choice) continue;
    state_->EndSequence(request, i);
    if (last) return;
  }
}

bool Scheduler::Plan(Time now, StepPlan& plan) {
  KVERN_CHECK(!full()) << "step " << state_->in_flight.front().step_id << " was not committed";
  if (state_->running == 0) return false;
  RoomMaker(*state_).Make();
  return StepBuilder(*state_, plan).Build(now);
}

void Scheduler::Commit(Time now, const StepResult& result, WorkerEffects& effects) {
  GroupState& state = *state_;
  KVERN_CHECK(!state.in_flight.empty());
  PlanInFlight plan = state.in_flight.PopFront();
  KVERN_CHECK_EQ(result.step_id, plan.step_id);
  state.samples_hash = SamplesHash(result);
  state.step_time += now - std::max(plan.planned_at, state.committed_at);
  state.committed_at = now;
  state.prefill_tokens += plan.prefill_tokens;
  state.recomputed_tokens += plan.recomputed_tokens;
  effects.runs.reserve(effects.runs.size() + result.samples.size());
  for (size_t i = 0; i < kRowsAhead; ++i) ExpectRow(plan.rows, i);
  size_t next_sample = 0;
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    ExpectRow(plan.rows, i + kRowsAhead);
    const PlanInFlight::Row& row = plan.rows[i];
    if (!row.sample) continue;
    KVERN_CHECK_LT(next_sample, result.samples.size());
    const SampledToken& sample = result.samples[next_sample++];
    KVERN_CHECK_EQ(sample.slot, row.slot);
    if (row.sequence->request == nullptr) continue;  // over since it was planned
    if (!TakeToken(*row.sequence, sample, effects)) continue;
    Request& request = *row.sequence->request;
    auto is_this = [&](const auto& live) { return live.get() == row.sequence; };
    auto it = std::find_if(request.live.begin(), request.live.end(), is_this);
    state.EndSequence(request, static_cast<size_t>(it - request.live.begin()));
  }
  KVERN_CHECK_EQ(next_sample, result.samples.size());
  plan.rows.swap(state.spare_rows);
}

bool Scheduler::TakeToken(Sequence& sequence, const SampledToken& sample, WorkerEffects& effects) {
  const Dispatch& dispatch = sequence.request->dispatch;
  uint32_t position = static_cast<uint32_t>(sequence.output.size());
  effects.runs.push_back({dispatch.request_id,
                          dispatch.epoch,
                          sequence.choice,
                          position,
                          {sample.token_id},
                          {},
                          FinishReason::kNone,
                          {}});
  TokenRun& run = effects.runs.back();
  if (dispatch.sampling.logprobs) run.logprobs = {sample.logprob};
  KVERN_CHECK(sequence.drawing > 0);
  --sequence.drawing;
  sequence.output.push_back(sample.token_id);
  if (!sequence.request->MayEnd(sample.token_id, sequence.output.size())) return false;
  run.finish_reason = FinishOf(dispatch, sample.token_id, sequence.output.size(), run.stop_reason);
  return run.finish_reason != FinishReason::kNone;
}

void Scheduler::PrefetchCommit(size_t stage) const {
  if (stage == 0) return Prefetch(state_.get());
  if (state_->in_flight.empty()) return;
  const PlanInFlight& plan = state_->in_flight.front();
  if (stage == 1) {
    Prefetch(&plan);
    Prefetch(state_->started.data());
    return;
  }
  Prefetch(plan.rows.data());
  for (size_t i = 0; i < std::min(kRowsAhead, state_->started.size()); ++i) {
    Prefetch(state_->started[i], Request::kHotBytes);
  }
}

void Scheduler::FillReport(StepReport& report) const {
  report.used_blocks = used_blocks();
  report.reserved_blocks = reserved_blocks();
  report.running = running();
  report.waiting = waiting();
  report.step_us = static_cast<uint64_t>(state_->step_time / kMicrosecond);
  report.prefill_tokens = state_->prefill_tokens;
  report.preemptions = state_->preemptions;
  report.recomputed_tokens = state_->recomputed_tokens;
}

uint64_t Scheduler::used_blocks() const { return state_->pool.used(); }
uint64_t Scheduler::reserved_blocks() const { return state_->reserved; }
uint32_t Scheduler::running() const { return state_->running; }
uint32_t Scheduler::waiting() const { return state_->not_started; }
uint32_t Scheduler::plans_in_flight() const {
  return static_cast<uint32_t>(state_->in_flight.size());
}
bool Scheduler::full() const { return state_->in_flight.full(); }
bool Scheduler::idle() const { return state_->running == 0 && state_->in_flight.empty(); }

}  // namespace kvern
