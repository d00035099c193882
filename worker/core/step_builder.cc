#include "worker/core/step_builder.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {
namespace {

// The most tokens the sequence can use in one step, whatever the budget.
uint32_t LongestChunk(const Sequence& sequence) {
  const Request& request = *sequence.request;
  uint32_t last_prompt_token = request.prompt_tokens() - 1;
  if (!request.forked) return last_prompt_token - sequence.computed;
  // Its copy of the prompt's last block is settled before it takes another block.
  if (request.ends_on_block() && sequence.computed == last_prompt_token) return 1;
  return sequence.remaining();
}

// Calls `visit` for every sequence that has work to be planned, oldest request first, then by
// choice.
template <typename Visit>
void ForEachRunnable(const GroupState& state, Visit visit) {
  for (Request* request : state.started) {
    size_t count = request->forked ? request->live.size() : 1;
    for (size_t i = 0; i < count; ++i) {
      if (!request->live[i]->exhausted()) visit(*request->live[i]);
    }
  }
}

}  // namespace

bool StepBuilder::Build(Time now) {
  auto runnable = [](const Request* request) { return request->runnable(); };
  if (std::none_of(state_.started.begin(), state_.started.end(), runnable)) return false;
  in_flight_.rows.swap(state_.spare_rows);
  in_flight_.rows.clear();
  plan_.starts.clear();  // One by one: the vectors keep their memory.
  plan_.forks.clear();
  plan_.appends.clear();
  plan_.copies.clear();
  plan_.rows.clear();
  plan_.stop = false;
  plan_.step_id = ++state_.step_id;
  plan_.previous_samples_hash = state_.samples_hash;
  plan_.releases.swap(state_.to_release);
  state_.to_release.clear();
  state_.free_slots.insert(state_.free_slots.end(), plan_.releases.begin(), plan_.releases.end());
  tokens_left_ = state_.config.max_batch_tokens;
  samples_left_ = state_.config.max_sample_rows;
  Fork();
  AddDecodes();
  const size_t decodes = plan_.rows.size();
  AddPrefills();
  KVERN_CHECK(!plan_.rows.empty());
  // After all rows have their blocks: no two rows of a step write one.
  for (size_t i = decodes; i < in_flight_.rows.size(); ++i)
    SettleTail(*in_flight_.rows[i].sequence);
  in_flight_.step_id = plan_.step_id;
  in_flight_.planned_at = now;
  state_.in_flight.PushBack(std::move(in_flight_));
  return true;
}

void StepBuilder::Fork() {
  for (Request* request : state_.started) {
    if (request->forked) continue;
    if (request->live[0]->computed + 1 == request->prompt_tokens()) ForkRequest(*request);
  }
}

void StepBuilder::ForkRequest(Request& request) {
  request.forked = true;
  Sequence& base = *request.live[0];
  if (!base.slot) StartSequence(base);  // A prompt of one token: there was nothing to compute.
  uint32_t whole = base.computed / kBlockSize;
  for (size_t i = 1; i < request.live.size(); ++i) {
    Sequence& sequence = *request.live[i];
    if (!sequence.output.empty()) {
      StartSequence(sequence);  // It brings its own tokens of an earlier epoch.
    } else {
      plan_.forks.push_back({*base.slot, NewSlot(sequence), sequence.choice});
      sequence.announced = whole;
    }
    sequence.computed = base.computed;
    for (uint32_t k = 0; k < whole; ++k) {
      state_.pool.Ref(base.table[k]);
      sequence.table.push_back(base.table[k]);
    }
    if (base.computed % kBlockSize != 0) {
      BlockId copy = state_.Allocate(request);
      sequence.table.push_back(copy);
      plan_.copies.push_back({base.table[whole], copy});
    }
    AnnounceBlocks(sequence);
  }
}

void StepBuilder::StartSequence(Sequence& sequence) {
  const Dispatch& dispatch = sequence.request->dispatch;
  SequenceStart start;
  start.slot = NewSlot(sequence);
  start.tokens.assign(dispatch.prompt.begin(), dispatch.prompt.end());
  start.prompt_tokens = sequence.request->prompt_tokens();
  start.tokens.insert(start.tokens.end(), sequence.output.begin(), sequence.output.end());
  start.choice = sequence.choice;
  start.sampling = dispatch.sampling;
  start.eos_ids = dispatch.eos_ids;
  plan_.starts.push_back(std::move(start));
}

Slot StepBuilder::NewSlot(Sequence& sequence) {
  Slot slot = static_cast<Slot>(state_.by_slot.size());
  if (state_.free_slots.empty()) {
    state_.by_slot.push_back(nullptr);
  } else {
    slot = state_.free_slots.back();
    state_.free_slots.pop_back();
  }
  KVERN_CHECK_LT(slot, state_.config.max_sequences);
  state_.by_slot[slot] = &sequence;
  sequence.slot = slot;
  return slot;
}

void StepBuilder::AddDecodes() {
  // There is always room for all: a sequence became a decode by a row of a step that had room for
  // it beside the decodes of that time.
  ForEachRunnable(state_, [&](Sequence& sequence) {
    if (sequence.decoding) AddRow(sequence, 1);
  });
}

void StepBuilder::SharePrefill(uint32_t budget) {
  const std::vector<Sequence*>& waiting = state_.prefills;
  std::vector<uint32_t>& counts = state_.chunks;
  counts.assign(waiting.size(), 0);
  auto give = [&](size_t i, uint32_t& left) {
    uint32_t count = std::min(LongestChunk(*waiting[i]) - counts[i], left);
    counts[i] += count;
    left -= count;
  };
  uint32_t share = waiting.size() > 1 ? budget / kNewcomerShare : 0;
  uint32_t oldest_first = budget - share;
  for (size_t i = 0; i < waiting.size(); ++i) give(i, oldest_first);

  std::vector<size_t>& shortest = state_.shortest;
  shortest.resize(waiting.size());
  for (size_t i = 0; i < waiting.size(); ++i) shortest[i] = i;
  std::stable_sort(shortest.begin(), shortest.end(), [&](size_t a, size_t b) {
    return waiting[a]->remaining() < waiting[b]->remaining();
  });
  uint32_t shortest_first = share + oldest_first;
  for (size_t i : shortest) give(i, shortest_first);
}

void StepBuilder::AddPrefills() {
  std::vector<Sequence*>& waiting = state_.prefills;
  waiting.clear();
  ForEachRunnable(state_, [&](Sequence& sequence) {
    if (!sequence.decoding) waiting.push_back(&sequence);
  });
  if (waiting.empty()) return;
  SharePrefill(tokens_left_);
  std::vector<uint32_t>& counts = state_.chunks;
  for (size_t i = 0; i < waiting.size(); ++i) {
    // A chunk that would draw a token beyond the step's limit of draws stops one token short.
    if (counts[i] == waiting[i]->remaining() && samples_left_ == 0) --counts[i];
    if (counts[i] > 0) AddRow(*waiting[i], counts[i]);
  }
}

void StepBuilder::AddRow(Sequence& sequence, uint32_t count) {
  if (!sequence.slot) StartSequence(sequence);
  uint32_t end = sequence.computed + count;
  while (sequence.table.size() * kBlockSize < end) {
    sequence.table.push_back(state_.Allocate(*sequence.request));
  }
  AnnounceBlocks(sequence);
  bool sample = end == sequence.length();
  plan_.rows.push_back({*sequence.slot, sequence.computed, count, sample});
  in_flight_.rows.push_back({&sequence, *sequence.slot, sample});
  if (!sequence.decoding) {
    in_flight_.prefill_tokens += count;
    uint32_t lost = std::max(sequence.lost, sequence.computed) - sequence.computed;
    in_flight_.recomputed_tokens += std::min(count, lost);
  }
  sequence.computed = end;
  KVERN_CHECK_LE(count, tokens_left_);
  tokens_left_ -= count;
  if (!sample) return;
  KVERN_CHECK(samples_left_ > 0);
  --samples_left_;
  ++sequence.drawing;
  sequence.decoding = true;
}

void StepBuilder::AnnounceBlocks(Sequence& sequence) {
  if (sequence.announced == sequence.table.size()) return;
  BlockAppend append;
  append.slot = *sequence.slot;
  append.first = sequence.announced;
  append.blocks.assign(sequence.table.begin() + sequence.announced, sequence.table.end());
  plan_.appends.push_back(std::move(append));
  sequence.announced = static_cast<uint32_t>(sequence.table.size());
}

void StepBuilder::SettleTail(Sequence& sequence) {
  Request& request = *sequence.request;
  if (!request.ends_on_block() || sequence.tail_settled) return;
  if (sequence.computed < request.prompt_tokens()) return;
  sequence.tail_settled = true;
  uint32_t tail = request.prompt_tokens() / kBlockSize - 1;
  for (const std::unique_ptr<Sequence>& sibling : request.live) {
    if (sibling.get() == &sequence || !sibling->tail_settled) continue;
    BlockId shared = sibling->table[tail];
    state_.pool.Ref(shared);
    state_.Unref(request, sequence.table[tail]);
    sequence.table[tail] = shared;
    sequence.announced = std::min(sequence.announced, tail);
    return;
  }
}

}  // namespace kvern
