// When a group's sequences run: continuous batching with chunked prefill over a pool of KV blocks.
// Pure: no clock, thread, file or device. One per group, driven by its leader (worker/engine) and
// by the simulator (tests/sim):  Accept / Cancel -> Plan -> (execute) -> Commit.
//
// Invariants (Audit, after every step in tests):
//  - free + held = total blocks; a block is held by exactly the sequences whose tables name it;
//  - a request's blocks never exceed BlocksNeeded(prompt, max_tokens, n), what the router reserved;
//  - every running decode gets a row in every plan that has rows; prefill takes what is left of the
//    token budget, oldest first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cluster/base/time.h"
#include "schemas/messages.h"

namespace kvern {

struct SchedulerConfig {
  uint64_t num_blocks = 0;
  uint32_t max_batch_tokens = 512;  // decodes and prefill chunks of one step
  uint32_t max_sequences = 256;     // slots
  uint32_t max_seq_len = 0;
  uint32_t vocab_size = 0;
};

// What the group has to tell the router.
struct WorkerEffects {
  std::vector<TokenRun> runs;
  std::vector<Nack> nacks;
};

class SchedulerImpl;

class Scheduler {
 public:
  explicit Scheduler(const SchedulerConfig& config);
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Takes a dispatch, or refuses it with a Nack: its worst case does not fit beside the worst cases
  // of what already runs, it is malformed, or its request already runs.
  void Accept(Time now, const Dispatch& dispatch, WorkerEffects& effects);

  // Stops a choice or all choices; unknown requests and other epochs are ignored. Blocks are free
  // for the next Plan. Nothing is reported for what was cancelled.
  void Cancel(Time now, const CancelDispatch& cancel, WorkerEffects& effects);

  // Fills the next step. False: nothing can run (then `plan` is untouched). Each plan must be
  // committed before the next is made.
  bool Plan(Time now, StepPlan& plan);

  // Takes the tokens drawn in the plan's step: appends, finishes choices, frees blocks.
  void Commit(Time now, const StepResult& result, WorkerEffects& effects);

  uint64_t used_blocks() const;      // held by sequences
  uint64_t reserved_blocks() const;  // worst cases of the accepted requests
  uint32_t running() const;          // sequences
  bool idle() const;                 // nothing accepted is unfinished

  // Dies if an invariant is broken.
  void Audit() const;

 private:
  std::unique_ptr<SchedulerImpl> impl_;
};

}  // namespace kvern
