// Makes one step's plan out of a group's state. Pure; a part of Scheduler (see scheduler.h for the
// rules).
#pragma once

#include "worker/core/group_state.h"

namespace kvern {

class StepBuilder {
 public:
  // Both outlive the builder, which is used for one step.
  StepBuilder(GroupState& state, StepPlan& plan) : state_(state), plan_(plan) {}

  // Fills the plan and marks it in flight. False: nothing that has started has anything to compute
  // (then the plan is untouched). REQUIRES: every started request is committed the blocks of its
  // rows (RoomMaker).
  bool Build(Time now);

 private:
  // Splits every request whose prompt is complete but for its last token into its choices.
  void Fork();
  void ForkRequest(Request& request);
  void StartSequence(Sequence& sequence);
  Slot NewSlot(Sequence& sequence);

  // Sets state.chunks: how many tokens each of state.prefills gets of `budget`.
  void SharePrefill(uint32_t budget);
  void AddDecodes();
  void AddPrefills();
  void AddRow(Sequence& sequence, uint32_t count);
  void AnnounceBlocks(Sequence& sequence);
  // Moves a choice with whose row the prompt's last block is complete onto a sibling's
  // (Request::ends_on_block).
  void SettleTail(Sequence& sequence);

  GroupState& state_;
  StepPlan& plan_;
  PlanInFlight in_flight_;
  uint32_t tokens_left_ = 0;
  uint32_t samples_left_ = 0;
};

}  // namespace kvern
