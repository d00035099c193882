#include "worker/core/room.h"

#include <algorithm>

#include "cluster/base/check.h"

namespace kvern {

void RoomMaker::Make() {
  LetGoExhausted();
  GrowStarted();
  StartGuaranteed();
  SortOut();
  StartWaiting();
}

void RoomMaker::LetGoExhausted() {
  if (state_.in_flight.empty()) return;
  for (Request* request : state_.started) {
    for (const std::unique_ptr<Sequence>& sequence : request->live) {
      if (sequence->exhausted()) TakeBack(*sequence);
    }
  }
}

void RoomMaker::GrowStarted() {
  // What choices that are over gave back comes first: it may save a victim.
  state_.growing.clear();
  for (Request* request : state_.started) {
    uint64_t blocks = request->BlocksToGoOn();
    if (blocks > request->committed) state_.growing.push_back({request, blocks});
    if (blocks >= request->committed) continue;
    state_.committed -= request->committed - blocks;
    request->committed = blocks;
  }
  for (auto [request, blocks] : state_.growing) {
    if (!request->started) continue;  // preempted by an older one
    uint64_t more = blocks - request->committed;
    if (!FreeUp(more, *request)) continue;
    request->committed += more;
    state_.committed += more;
  }
}

void RoomMaker::StartGuaranteed() {
  while (!state_.waiting_guaranteed.empty()) {
    Request& request = *state_.waiting_guaranteed.front();
    // It fits beside the other worst cases (admission saw to that), unless requests that have
    // become guaranteed since are still running.
    uint64_t owed = state_.owed + request.reserved;
    if (owed + LargestStandard() > state_.pool.total() || !HasSlotsFor(request)) return;
    state_.waiting_guaranteed.pop_front();
    uint64_t blocks = request.BlocksToGoOn();
    FreeUp(blocks, request);
    Start(request, blocks);
  }
}

void RoomMaker::StartWaiting() {
  // A guaranteed request that still waits is next.
  if (!state_.waiting_guaranteed.empty() || state_.waiting.empty()) return;
  uint64_t taken = state_.committed;  // and what guaranteed requests are still owed
  for (const Request* request : state_.started) {
    if (request->guaranteed) taken += request->reserved - request->committed;
  }
  while (!state_.waiting.empty()) {
    Request& request = *state_.waiting.front();
    // Ranks begin a sequence with all its tokens: those of one that was preempted just now are
    // still being drawn.
    if (request.drawing()) return;
    uint64_t blocks = request.BlocksToGoOn();
    uint64_t needed = request.guaranteed ? request.reserved : blocks;
    uint64_t largest = request.guaranteed ? LargestStandard() : 0;
    if (taken + needed > state_.pool.total() || !HasSlotsFor(request)) return;
    // Whichever request is the oldest one day must be able to finish beside the guaranteed ones.
    if (state_.owed + request.reserved + largest > state_.pool.total()) return;
    state_.waiting.pop_front();
    Start(request, blocks);
    taken += needed;
  }
}

void RoomMaker::Start(Request& request, uint64_t blocks) {
  request.started = true;
  request.committed = blocks;
  state_.committed += blocks;
  if (request.guaranteed) state_.owed += request.reserved;
  state_.not_started -= static_cast<uint32_t>(request.live.size());
  auto older = [](const Request* a, const Request* b) { return a->age < b->age; };
  auto place = std::lower_bound(state_.started.begin(), state_.started.end(), &request, older);
  state_.started.insert(place, &request);
}

bool RoomMaker::FreeUp(uint64_t blocks, const Request& needy) {
  while (state_.committed + blocks > state_.pool.total()) {
    Request* victim = PickVictim();
    // The worst cases of the guaranteed requests and of any one other fit into the pool together.
    KVERN_CHECK(victim != nullptr) << blocks << " blocks, " << state_.committed << " committed";
    Preempt(*victim);
    if (victim == &needy) return false;
  }
  return true;
}

Request* RoomMaker::PickVictim() const {
  const Request* oldest = state_.Oldest();
  Request* victim = nullptr;
  uint64_t least = 0;
  for (size_t i = state_.started.size(); i-- > 0;) {
    Request* request = state_.started[i];
    if (!request->started || request->guaranteed || request == oldest) continue;
    if (request->committed == 0) continue;  // nothing is left to compute of it
    uint64_t redo = request->TokensToRedo();
    if (victim != nullptr && redo >= least) continue;
    victim = request;
    least = redo;
  }
  return victim;
}

void RoomMaker::Preempt(Request& request) {
  KVERN_CHECK(!request.guaranteed && &request != state_.Oldest());
  state_.committed -= request.committed;
  request.committed = 0;
  request.started = false;
  if (request.held > 0) {  // Otherwise it had only been promised blocks, and loses nothing.
    ++state_.preemptions;
    request.guaranteed = ++request.preemptions == kMaxPreemptions;
  }
  for (const std::unique_ptr<Sequence>& sequence : request.live) {
    sequence->lost = std::max(sequence->lost, sequence->computed);
    TakeBack(*sequence);
  }
  request.forked = request.live.size() == 1;
}

void RoomMaker::TakeBack(Sequence& sequence) {
  state_.DropSequence(sequence);
  sequence.computed = 0;
  sequence.announced = 0;
  sequence.decoding = false;
  sequence.tail_settled = false;
}

void RoomMaker::SortOut() {
  auto& started = state_.started;
  for (Request* request : started) {
    if (!request->started) state_.AddWaiting(*request);
  }
  std::erase_if(started, [](const Request* request) { return !request->started; });
}

bool RoomMaker::HasSlotsFor(const Request& request) const {
  uint32_t used = state_.running - state_.not_started;
  return used + request.live.size() <= state_.config.max_sequences;
}

uint64_t RoomMaker::LargestStandard() const {
  uint64_t largest = 0;
  for (const Request* request : state_.started) {
    if (request->started && !request->guaranteed) largest = std::max(largest, request->reserved);
  }
  return largest;
}

}  // namespace kvern
