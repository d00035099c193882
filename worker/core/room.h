// Who has blocks in the next step: what runs grows, what waits starts, and standard requests are
// preempted where that does not fit. Decided before the step's first row is planned, so that a
// planned row always finds its blocks. A part of Scheduler (see scheduler.h for the rules).
#pragma once

#include "worker/core/group_state.h"

namespace kvern {

class RoomMaker {
 public:
  // `state` outlives the maker, which is used for one step.
  explicit RoomMaker(GroupState& state) : state_(state) {}

  // Afterwards every started request is committed the blocks of its next rows, and whenever
  // anything is accepted, something is started.
  void Make();

 private:
  // Takes the blocks and slots of choices with nothing left to compute but what is in flight.
  void LetGoExhausted();
  void GrowStarted();
  void StartGuaranteed();
  void StartWaiting();
  void Start(Request& request, uint64_t blocks);

  // Preempts until `blocks` more can be committed. False: `needy` was the victim itself.
  bool FreeUp(uint64_t blocks, const Request& needy);
  // The standard request that loses least, the younger of equals; never the oldest of all.
  Request* PickVictim() const;
  void Preempt(Request& request);
  void TakeBack(Sequence& sequence);
  // Lists what was preempted as waiting.
  void SortOut();

  bool HasSlotsFor(const Request& request) const;
  // The largest worst case among started requests that are not guaranteed.
  uint64_t LargestStandard() const;

  GroupState& state_;
};

}  // namespace kvern
