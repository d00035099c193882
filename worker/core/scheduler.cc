#include "worker/core/scheduler.h"

#include <algorithm>
#include <utility>

#include "cluster/base/check.h"
#include "cluster/capacity/kv_budget.h"
#include "worker/core/admission.h"
#include "worker/core/group_state.h"
#include "worker/core/room.h"
#include "worker/core/step_builder.h"

namespace kvern {

Scheduler::Scheduler(const SchedulerConfig& config) : state_(std::make_unique<GroupState>(config)) {
  KVERN_CHECK(config.max_batch_tokens > 0 && config.max_sample_rows > 0);
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
  KVERN_CHECK(!state_->plan_in_flight) << "step " << state_->step_id << " was not committed";
  if (state_->running == 0) return false;
  RoomMaker(*state_).Make();
  StepBuilder(*state_, plan).Build();
  state_->planned_at = now;
  return true;
}

void Scheduler::Commit(Time now, const StepResult& result, WorkerEffects& effects) {
  GroupState& state = *state_;
  KVERN_CHECK(state.plan_in_flight);
  KVERN_CHECK_EQ(result.step_id, state.step_id);
  state.plan_in_flight = false;
  state.samples_hash = SamplesHash(result);
  Count(now);
  effects.runs.reserve(effects.runs.size() + result.samples.size());
  size_t next_sample = 0;
  for (const PlanRow& row : state.in_flight) {
    const SampledToken* sample = nullptr;
    if (row.sample) {
      KVERN_CHECK_LT(next_sample, result.samples.size());
      sample = &result.samples[next_sample++];
      KVERN_CHECK_EQ(sample->slot, row.slot);
    }
    Sequence* sequence = state.by_slot[row.slot];
    if (sequence == nullptr) continue;  // cancelled while the step ran
    sequence->computed += row.count;
    Request& request = *sequence->request;
    if (sample != nullptr && TakeToken(*sequence, *sample, effects)) {
      auto is_this = [&](const auto& live) { return live.get() == sequence; };
      auto it = std::find_if(request.live.begin(), request.live.end(), is_this);
      state.EndSequence(request, static_cast<size_t>(it - request.live.begin()));
      continue;
    }
    SettleTail(request, *sequence);
  }
  KVERN_CHECK_EQ(next_sample, result.samples.size());
  state.in_flight.clear();
}

void Scheduler::Count(Time now) {
  GroupState& state = *state_;
  state.step_time += now - state.planned_at;
  for (size_t i = state.decodes_in_flight; i < state.in_flight.size(); ++i) {
    const PlanRow& row = state.in_flight[i];
    state.prefill_tokens += row.count;
    const Sequence* sequence = state.by_slot[row.slot];
    if (sequence == nullptr || sequence->lost <= row.start) continue;
    state.recomputed_tokens += std::min(row.count, sequence->lost - row.start);
  }
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
  sequence.decoding = true;
  sequence.output.push_back(sample.token_id);
  run.finish_reason = FinishOf(dispatch, sample.token_id, sequence.output.size(), run.stop_reason);
  return run.finish_reason != FinishReason::kNone;
}

void Scheduler::SettleTail(Request& request, Sequence& sequence) {
  if (!request.ends_on_block() || sequence.tail_settled) return;
  if (sequence.computed < request.prompt_tokens()) return;
  sequence.tail_settled = true;
  uint32_t tail = request.prompt_tokens() / kBlockSize - 1;
  for (const std::unique_ptr<Sequence>& sibling : request.live) {
    if (sibling.get() == &sequence || !sibling->tail_settled) continue;
    BlockId shared = sibling->table[tail];
    state_->pool.Ref(shared);
    state_->Unref(request, sequence.table[tail]);
    sequence.table[tail] = shared;
    sequence.announced = std::min(sequence.announced, tail);
    return;
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
bool Scheduler::idle() const { return state_->running == 0; }

}  // namespace kvern
