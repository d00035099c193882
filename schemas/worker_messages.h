// What workers, launcher and router say to each other, as owned structs.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "schemas/client_messages.h"
#include "schemas/ids.h"
#include "schemas/sampling.h"
#include "schemas/token_ids.h"

namespace kvern {

inline constexpr uint32_t kMaxRanks = 64;
// NCCL's unique id has 128.
inline constexpr size_t kMaxCommIdBytes = 1024;

// ---- worker -> router

// How long one phase of a rank's start took.
struct StartupPhase {
  std::string name;
  double seconds = 0;
  friend bool operator==(const StartupPhase&, const StartupPhase&) = default;
};

// Every rank says this once, after weights, workspace and KV blocks are allocated. Ranks of one
// group must agree in build, fingerprint, model and world, or the group is refused.
struct Join {
  std::string group;
  // The same for all ranks of one start of the group; 0: the router numbers its starts.
  Incarnation group_incarnation = 0;
  uint32_t rank = 0;
  uint32_t world = 0;
  std::string build;  // program version
  uint64_t weights_fingerprint = 0;
  std::string model;
  std::string device;  // "cpu"
  std::string host;
  uint32_t pid = 0;
  uint64_t kv_blocks = 0;        // what this rank could allocate
  uint64_t bytes_per_token = 0;  // KV bytes of one token on this rank
  uint64_t weights_bytes = 0;
  uint64_t workspace_bytes = 0;
  uint32_t max_seq_len = 0;
  uint32_t vocab_size = 0;
  std::string rendezvous;  // rank 0: where the other ranks find it; else empty
  std::vector<StartupPhase> startup;
  uint32_t max_batch_tokens = 0;  // of one step, prefill and decode; 0: not said
  // Rank 0 of several GPUs: by which they find each other, in NCCL's own bytes; else empty.
  std::vector<uint8_t> comm_id;
  friend bool operator==(const Join&, const Join&) = default;
};

// Tokens of one choice of one request out of one step.
struct TokenRun {
  RequestId request_id;
  Epoch epoch = 0;
  uint32_t choice = 0;
  uint32_t position = 0;  // of the first token in the choice's output
  std::vector<uint32_t> token_ids;
  std::vector<TokenLogprob> logprobs;
  FinishReason finish_reason = FinishReason::kNone;
  StopReason stop_reason;  // never a string: stop strings are the router's
  friend bool operator==(const TokenRun&, const TokenRun&) = default;
};

// The worker refuses a dispatch that its own pool cannot hold or that it cannot understand.
struct Nack {
  RequestId request_id;
  Epoch epoch = 0;
  ErrorCode code = ErrorCode::kInternal;
  std::string message;
  friend bool operator==(const Nack&, const Nack&) = default;
};

struct RankAge {
  uint32_t rank = 0;
  uint64_t step_age_ms = 0;
  friend bool operator==(const RankAge&, const RankAge&) = default;
};

// One message per engine step and group; also sent without tokens when idle, as the leader's
// heartbeat.
struct StepReport {
  Incarnation group_incarnation = 0;
  uint64_t step_id = 0;        // grows by one per executed step
  uint64_t acked_command = 0;  // the newest Commands::sequence this report reflects
  uint64_t used_blocks = 0;    // blocks that hold tokens, by the worker's own count
  uint64_t reserved_blocks =
      0;                 // sum of the worst cases of what it runs, by the worker's own count
  uint32_t running = 0;  // sequences
  std::vector<TokenRun> runs;
  std::vector<Nack> nacks;
  std::vector<RankAge> ages;
  uint32_t waiting = 0;  // accepted sequences without blocks: not started yet, or preempted
  // Totals since the group started.
  uint64_t step_us = 0;            // time in steps, from plan to commit
  uint64_t prefill_tokens = 0;     // computed in rows that are not a decode, recomputed ones too
  uint64_t preemptions = 0;        // a request that loses its blocks to another counts once
  uint64_t recomputed_tokens = 0;  // whose KV was dropped by preemption
  friend bool operator==(const StepReport&, const StepReport&) = default;
};

// The launcher's word that a group's processes are dead (sent before it restarts them).
struct GroupDown {
  std::string group;
  Incarnation group_incarnation = 0;
  std::string reason;
  friend bool operator==(const GroupDown&, const GroupDown&) = default;
};
// The leader finished what it had after Drain; its ranks exit.
struct Leave {
  Incarnation group_incarnation = 0;
  friend bool operator==(const Leave&, const Leave&) = default;
};
// Any rank's word that it was told to end: the group is to take nothing new and be drained.
struct LeaveSoon {
  Incarnation group_incarnation = 0;
  friend bool operator==(const LeaveSoon&, const LeaveSoon&) = default;
};
using WorkerToRouter = std::variant<Join, StepReport, GroupDown, Leave, LeaveSoon>;

// ---- router -> worker

// To every rank, when all have joined.
struct GroupStart {
  Incarnation router_incarnation = 0;
  Incarnation group_incarnation = 0;
  uint64_t kv_blocks = 0;        // the minimum over the ranks: what the group may use
  std::string rendezvous;        // rank 0's
  uint32_t lease_ms = 0;         // the leader reports at least three times in this time
  std::vector<uint8_t> comm_id;  // rank 0's
  friend bool operator==(const GroupStart&, const GroupStart&) = default;
};
// The rank must exit; the reason is for its operator.
struct JoinRefused {
  std::string reason;
  friend bool operator==(const JoinRefused&, const JoinRefused&) = default;
};

// One attempt at one request.
struct Dispatch {
  RequestId request_id;
  Epoch epoch = 0;
  TokenIds prompt;  // [prompt_tokens]
  uint32_t n = 1;
  ResolvedSampling sampling;
  std::vector<uint32_t> eos_ids;
  // What each choice had emitted before this attempt; empty on the first.
  std::vector<std::vector<uint32_t>> emitted;  // [n][tokens]
  // Guaranteed: its worst case is free when it is dispatched, and it is never preempted.
  ServiceClass service_class = ServiceClass::kGuaranteed;
  friend bool operator==(const Dispatch&, const Dispatch&) = default;
};
// Stops one choice of a request, or all of them.
struct CancelDispatch {
  RequestId request_id;
  Epoch epoch = 0;
  bool all_choices = true;
  uint32_t choice = 0;
  friend bool operator==(const CancelDispatch&, const CancelDispatch&) = default;
};
// What one message to a worker may hold; a turn that has more for a group sends several.
inline constexpr size_t kMaxDispatches = size_t{1} << 14;
inline constexpr size_t kMaxCancels = size_t{1} << 16;
inline constexpr size_t kMaxDispatchedBytes = size_t{48} << 20;  // of the message's 64 MiB

// What one router turn has for this group; sequence numbers have no gaps within an incarnation.
struct Commands {
  Incarnation group_incarnation = 0;
  uint64_t sequence = 0;
  std::vector<Dispatch> dispatches;
  std::vector<CancelDispatch> cancels;
  bool drain = false;  // finish what runs, take nothing new, Leave
  friend bool operator==(const Commands&, const Commands&) = default;
};
using RouterToWorker = std::variant<GroupStart, JoinRefused, Commands>;

}  // namespace kvern
