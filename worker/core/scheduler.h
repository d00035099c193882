// When a group's sequences run: continuous batching with chunked prefill over a pool of KV blocks.
// Pure: no clock, thread, file or device. One per group, driven by its leader (worker/engine) and
// by the simulator (tools/sim):  Accept / Cancel -> Plan -> (execute) -> Commit.
//
// With two plans in flight a step is planned while the one before it runs, from all that is known
// by then: how many tokens each sequence will have, but not which. So a plan never depends on a
// token's value, except that a sequence which turns out to have ended (a stop id, a cancel) may
// have a row in the plan after: it is executed, and what it draws is dropped. Ranks execute plans
// whole and in order; what a plan frees may therefore be used by the next.
//
// Invariants (Audit, after every step in tests; AuditSums, after every step of a leader):
//  - free + held = total blocks; a block is held by exactly the sequences whose tables name it;
//  - a request's blocks never exceed BlocksNeeded(prompt, max_tokens, n), its worst case;
//  - the worst cases of all guaranteed requests, and of any one standard request that has started,
//    fit into the pool together: what guaranteed ones are still owed is free or can be taken from
//    standard ones, and the oldest request can always finish;
//  - every started decode gets a row in every plan; prefill takes what is left of the token budget;
//  - of what is left, 1/kNewcomerShare goes to the prompts with the fewest tokens to compute, the
//    rest oldest first (what one side cannot use, the other gets), so that a short prompt never
//    waits for a long one.
//
// Service classes. *Guaranteed*: never preempted, starts at the next plan. *Standard*: takes blocks
// as it grows; starts, oldest first, when what is free beside what guaranteed requests are still
// owed covers its tokens and one more; those behind wait. When a started request needs a block and
// none is free, the standard request with the fewest tokens to redo is preempted (of equals the
// younger; perhaps the needy one itself; never the oldest of the group): it loses all its blocks
// and slots, keeps its tokens and waits in its old place, to compute them again. A request
// preempted kMaxPreemptions times counts as guaranteed: it starts when its whole worst case fits,
// and keeps it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/base/time.h"
#include "schemas/messages.h"

namespace kvern {

// A quarter: with a budget of 512, a prompt of up to 128 tokens takes one step beside a long one.
inline constexpr uint32_t kNewcomerShare = 4;

inline constexpr uint32_t kMaxPreemptions = 2;

inline constexpr uint32_t kMaxPlansInFlight = 2;

struct SchedulerConfig {
  uint64_t num_blocks = 0;
  uint32_t max_batch_tokens = 512;  // decodes and prefill chunks of one step
  uint32_t max_sequences = 256;     // slots: started choices at once. A choice needs a block of its
                                    // own, so with num_blocks slots the blocks run out first.
  uint32_t max_sample_rows = 256;   // tokens drawn in one step: bounds the logits in memory
  uint32_t max_seq_len = 0;
  uint32_t vocab_size = 0;
  uint32_t plans_in_flight = 1;  // made and not committed; at most kMaxPlansInFlight
};

// What the group has to tell the router.
struct WorkerEffects {
  std::vector<TokenRun> runs;
  std::vector<Nack> nacks;
};

struct GroupState;
struct Request;
struct Sequence;

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Takes a dispatch, or refuses it with a Nack: it is malformed, its request already runs, its
  // class is not built, or its worst case does not fit beside those of the guaranteed requests (one
  // that is guaranteed itself must fit beside the largest of the standard ones, too).
  void Accept(Time now, const Dispatch& dispatch, WorkerEffects& effects);

  // Stops a choice or all choices; unknown requests and other epochs are ignored. Blocks are free
  // for the next Plan. Nothing is reported for what was cancelled; plans in flight compute it in
  // vain.
  void Cancel(Time now, const CancelDispatch& cancel, WorkerEffects& effects);

  // Fills the next step. False: nothing can run, as long as the plans in flight are not committed
  // (then `plan` is untouched). REQUIRES: plans_in_flight() < the configured number.
  bool Plan(Time now, StepPlan& plan);

  // Takes the tokens drawn in the step of the oldest plan in flight: appends, finishes choices,
  // frees blocks.
  void Commit(Time now, const StepResult& result, WorkerEffects& effects);

  // Asks for the memory that the next Commit needs. In three stages, each looking where the one
  // before has led.
  void PrefetchCommit(size_t stage) const;

  // Fills the report's counts and totals: all but what it is about (group, step, command) and what
  // effects hold.
  void FillReport(StepReport& report) const;

  uint64_t used_blocks() const;      // held by sequences
  uint64_t reserved_blocks() const;  // worst cases of the accepted requests; may exceed the pool
  uint32_t running() const;          // sequences that are not over, those that wait included
  uint32_t waiting() const;          // of them, those without blocks: not started, or preempted
  uint32_t plans_in_flight() const;  // made and not committed
  bool full() const;                 // as many as may be: one must be committed before the next
  bool idle() const;                 // nothing accepted is unfinished, no plan is in flight

  // Dies if an invariant is broken. Counts every block: for tests and the simulator.
  void Audit() const;
  // The part of it that looks at each started request once, and at no block: what they hold is what
  // the pool is missing, and within what is promised. The leader calls it after every step.
  void AuditSums() const;

 private:
  // Appends a drawn token and reports it; true when the choice is over.
  bool TakeToken(Sequence& sequence, const SampledToken& sample, WorkerEffects& effects);

  std::unique_ptr<GroupState> state_;
};

}  // namespace kvern
