// The router's decisions: who is admitted where and when, and what every client is told. A pure
// state machine: no clock, socket, thread, file or random device; the same calls give the same
// effects. Production (router/io) and the simulator (tools/sim) drive the same class.
//
// Invariants (checked by Audit and the simulator):
//  - every accepted request gets exactly one terminal answer (a Delta with usage, or a
//  RequestError);
//  - per choice, positions sent are 0, 1, 2, ... each once; frames of an older epoch are dropped;
//  - reserved(group) = sum of the needs, at worst, of the requests dispatched to it. Those of class
//  guaranteed never exceed its blocks; with those of class standard, which are admitted by what
//  they are expected to need, the sum may;
//  - the queue stays within its entries and bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "cluster/base/time.h"
#include "router/core/text_filter.h"
#include "schemas/ids.h"
#include "schemas/messages.h"

namespace kvern {

// A connection to a client or a worker process, numbered by whoever owns the sockets; never reused.
using PeerId = uint64_t;

// A tenant is named once per connection, in Hello; the name "" is a tenant like the others.
struct TenantConfig {
  std::string name;
  uint32_t weight = 1;      // its share of the service among tenants that wait, 1 to 1000
  uint64_t max_blocks = 0;  // worst-case blocks of what it may run at once; 0: no limit
  uint64_t block_seconds_per_minute = 0;  // KV-block-seconds it may use; 0: no limit
  int32_t priority_ceiling = 0;           // the highest `priority` it may ask for, 0 to 7
};

struct RouterConfig {
  std::string model;           // the served name
  bool has_tokenizer = false;  // else prompt, messages and stop are refused
  uint32_t max_seq_len = 0;    // prompt + output tokens of one request
  uint32_t vocab_size = 0;     // token ids must be below it
  std::vector<uint32_t> eos_ids;
  uint32_t default_max_tokens = 256;
  Duration default_ttft_deadline = 10 * kSecond;
  uint32_t queue_entries = 1024;        // requests waiting (being tokenised included)
  uint64_t queue_bytes = 256ull << 20;  // bytes of their prompts
  // No request is lined up that is predicted to wait longer.
  Duration queue_wait_max = 60 * kSecond;
  // A running standard request is taken to end at this quantile of the output lengths seen, given
  // what it has produced. 0: at once (optimistic), 100: at max_tokens.
  uint32_t output_quantile_percent = 65;
  // Of a group's blocks, kept free of the predicted peak of standard requests.
  uint32_t watermark_percent = 3;
  std::vector<TenantConfig> tenants;  // a tenant that is not listed has the defaults
  uint32_t max_clients = 65536;
  Duration client_lease =
      3 * kSecond;  // a client with open requests that is silent this long is gone
  Duration group_lease = 10 * kSecond;  // likewise a group's leader
  // For clients that give credit: tokens of a stream that were sent and not yet taken by its
  // reader, beyond which it is paused.
  uint32_t stream_window = 1024;
  // A paused stream whose reader takes nothing for this long is cancelled.
  Duration slow_reader_timeout = 30 * kSecond;
  // Kept for the paused streams of one client; beyond, the one with the most is cancelled.
  uint64_t client_buffer_bytes = 16ull << 20;
  // From the first rank of a start to the last: large models take minutes. Ends before the ten
  // minutes that a rank waits by itself, so that those who wait hear which ranks are absent.
  Duration join_timeout = 570 * kSecond;
  // From a group's start to its leader's first report: peers are met and, on GPUs, kernels loaded
  // and products tried once.
  Duration start_timeout = 60 * kSecond;
  // A group that is dead this long does not come back: its size no longer counts.
  Duration group_memory = 600 * kSecond;
  Incarnation router_incarnation = 0;
};

// ---- Events: what happened outside.
struct ClientSaid {
  PeerId client = 0;
  ClientMessage message;
};
struct ClientUnreachable {
  PeerId client = 0;
};
// The answer to a Tokenize effect. `error` kNone: `ids` is the prompt. kNeverFits: it has more ids
// than Tokenize::max_ids.
struct Tokenized {
  RequestId request_id;
  std::vector<uint32_t> ids;
  ErrorCode error = ErrorCode::kNone;
  std::string message;
};
struct WorkerSaid {
  PeerId worker = 0;
  WorkerToRouter message;
};
struct WorkerUnreachable {
  PeerId worker = 0;
};
struct Tick {};        // a deadline passed (see NextDeadline); the Flush after it acts on it
struct BeginDrain {};  // admit nothing new, finish what runs
// Before what follows, nobody ran the router for so long: its process was stopped, or its machine.
// Others may have spoken, so it is no silence of theirs; the deadlines of requests stay.
struct Absent {
  Duration time = 0;
};
using RouterEvent = std::variant<ClientSaid, ClientUnreachable, Tokenized, WorkerSaid,
                                 WorkerUnreachable, Tick, BeginDrain, Absent>;

// Until when everything that was said has been stepped; what was said later may not have been read.
struct Hearing {
  Time clients = 0;
  Time workers = 0;
};

// ---- Effects: what must be done outside.
struct ToClient {
  PeerId client = 0;
  RouterToClient message;
};
struct ToWorker {
  PeerId worker = 0;
  RouterToWorker message;
};
// Turn text into ids off this thread; answered by Tokenized. The text moves out of the core. Higher
// bands go first, in a band the threads' time is shared by weight among the tenants.
struct Tokenize {
  RequestId request_id;
  std::variant<std::string, std::vector<ChatMessage>> input;
  uint32_t tenant = 0;
  uint32_t weight = 1;
  uint8_t band = 0;
  uint32_t max_ids = UINT32_MAX;  // more are of no use
};
// Something an operator may want to read: a name and key=value pairs; never prompts or answers.
struct Note {
  bool warning = false;
  std::string event;
  std::vector<std::pair<std::string, std::string>> fields;
};
// A start of a group that is over for good, though its processes may not know: they may hang.
struct GroupGivenUp {
  std::string group;
  Incarnation incarnation = 0;
  std::string reason;
};
// The first rank of a start has joined: from here on the router tells which ranks stay away.
struct GroupJoining {
  std::string group;
  Incarnation incarnation = 0;
};
struct RouterEffects {
  // Per client in order. Deltas are coalesced: one message per client and turn, unless it would be
  // too large, but what is delivered before another message to the same client also goes out before
  // it.
  std::vector<ToClient> to_clients;
  std::vector<ToWorker> to_workers;  // mostly one Commands message per group
  std::vector<Tokenize> tokenize;
  // Texts of which nobody wants the ids any more, of this turn or an earlier one: an answer of any
  // kind is still due, and may come at once.
  std::vector<RequestId> withdrawn;
  // For whoever watches the processes.
  std::vector<GroupJoining> joining;
  std::vector<GroupGivenUp> given_up;
  std::vector<Note> notes;

  void Clear() {
    to_clients.clear();
    to_workers.clear();
    tokenize.clear();
    withdrawn.clear();
    joining.clear();
    given_up.clear();
    notes.clear();
  }
};

// ---- What the status server shows. A copy; taken by the router's thread.
struct GroupStatus {
  std::string name;
  std::string model;
  bool live = false;  // all ranks joined and its leader has reported since; only then it gets work
  bool draining = false;  // live, but gets nothing new: it finishes what runs and leaves
  uint64_t total_blocks = 0;
  // Worst cases of the guaranteed requests and the expected peak of the others, by the router's
  // ledger.
  uint64_t reserved_blocks = 0;
  uint64_t worst_case_blocks =
      0;                     // of all that runs; more than total when admission is by forecast
  uint64_t used_blocks = 0;  // by the worker's last report
  int64_t drift_blocks = 0;  // ledger as of the acknowledged command minus the worker's own sum
  uint32_t running = 0;      // requests dispatched and not finished
  uint32_t waiting = 0;      // of its sequences, those that hold no blocks: preempted or not begun
  uint64_t preemptions = 0;  // since it started
  uint64_t recomputed_tokens = 0;
  Duration report_age = 0;
  std::vector<Join> ranks;             // as they joined, by rank
  std::vector<RankAge> ages;           // of the last step, by now
  std::vector<uint32_t> absent_ranks;  // while it waits for them to join
};
struct RouterCounters {
  uint64_t accepted = 0;
  uint64_t completed = 0;
  uint64_t cancelled = 0;
  uint64_t prompt_tokens = 0;
  uint64_t generated_tokens = 0;
  std::vector<uint64_t> errors;  // by ErrorCode
  uint64_t stale_runs = 0;       // token runs dropped by epoch or position
  // Words of a group's end that were ignored: of another start of it, or of a stranger.
  uint64_t stale_group_messages = 0;
  uint64_t lost_groups = 0;
  uint64_t slow_readers = 0;                   // streams cancelled because they were not read
  std::vector<double> cancel_to_free_seconds;  // since the last snapshot; bounded
  std::vector<double> ttft_seconds;            // likewise
  std::vector<double> tpot_seconds;            // likewise
  std::vector<double> queue_seconds;           // likewise
};
struct TenantStatus {
  std::string name;       // "": all that are not listed in the configuration, together
  uint64_t accepted = 0;  // requests
  uint64_t completed = 0;
  std::vector<uint64_t> errors;  // by ErrorCode
  uint64_t service = 0;          // tokens of input and twice those of output
  uint32_t waiting = 0;          // requests
  uint64_t running_blocks = 0;   // worst cases of what runs
};
struct RouterStatus {
  std::vector<GroupStatus> groups;
  std::vector<TenantStatus> tenants;  // as listed, then ""
  RouterCounters counters;
  uint64_t queue_entries = 0;
  uint64_t queue_bytes = 0;
  Duration queue_age = 0;  // of the oldest waiting request
  uint64_t clients = 0;
  uint64_t paused_streams = 0;  // their readers are slow
  uint64_t kept_bytes = 0;      // for them
  bool draining = false;
};
// What can be had of the books at once, for whoever checks every message.
struct RouterBooks {
  uint64_t queue_entries = 0;
  uint64_t queue_bytes = 0;
  // ---- of one group; as in GroupStatus
  bool live = false;  // else nothing of these
  uint64_t total_blocks = 0;
  uint64_t worst_case_blocks = 0;
  int64_t drift_blocks = 0;
  uint32_t running = 0;
  Duration report_age = 0;
  uint32_t failures = 0;  // of requests before their first tokens in a row; counted to nine
};
// GET /v1/requests/{id}: where a request is and why it waits.
struct RequestStatus {
  std::string state;             // "tokenizing", "queued", "running", "unread"
  uint64_t needed_blocks = 0;    // at worst: with all of max_tokens in every choice
  uint64_t expected_blocks = 0;  // what the router counts on; of a guaranteed one the worst case
  // Total less GroupStatus::reserved_blocks, of the group that takes work with the most of them.
  uint64_t free_blocks = 0;
  // Time until it is dispatched. Absent when no rate is known, and while no group that takes work
  // could ever hold it: what that takes is not predicted.
  std::optional<uint64_t> expected_wait_ms;
  // Requests that would be dispatched before it if the groups had room for all. Those that their
  // own tenant's max_blocks holds are not counted, but for those of its own tenant and priority.
  uint64_t queue_position = 0;
  std::string group;   // when running
  std::string reason;  // why it waits
  // The reason in a word (router/core/find.cc lists them); empty when it is not queued.
  std::string waits_for;
  // No group takes work: the wait is from when one does, at the rate that was measured last.
  bool wait_at_last_rate = false;
};

namespace router {
class RouterImpl;
}

class Router {
 public:
  // `seed` feeds the draws of the router: missing request ids and sampling seeds, jitter.
  // `text` may be null when the model has no tokenizer; it outlives the router.
  Router(const RouterConfig& config, uint64_t seed, const TextFilterFactory* text);
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // Takes one event and appends its effects. `now` never goes back.
  void Step(Time now, RouterEvent event, RouterEffects& effects);

  // Asks for the memory that the next report of `rank` will need. In stages, each looking where the
  // one before has led, so that none waits: stage 0 before it by as many reports as there are
  // stages, the last by one. Changes nothing.
  static constexpr size_t kPrefetchStages = 3;
  void PrefetchReport(PeerId rank, size_t stage);

  // Call once after the events of one turn, or when NextDeadline has passed: ends what is overdue,
  // then sends what the turn made possible (dispatches to groups, coalesced deltas to clients).
  // Nobody is called silent for what may not have been read yet, unless that goes on for as long
  // again as he may be silent. Without `heard`: all was read.
  void Flush(Time now, const Hearing& heard, RouterEffects& effects);
  void Flush(Time now, RouterEffects& effects) { Flush(now, {now, now}, effects); }

  // When a Tick is due; kTimeMax when nothing is timed.
  Time NextDeadline() const;

  // No request is open and, after BeginDrain, every group has left or was lost.
  bool Drained() const;

  // Takes and clears the sampled observations of RouterCounters.
  RouterStatus Status(Time now);
  // Of the group that `rank` is connected for. O(1).
  RouterBooks Books(Time now, PeerId rank);
  // GroupStatus::reserved_blocks of that group; 0: it is not live. O(1) right after a dispatch to
  // it.
  uint64_t ReservedBlocks(PeerId rank);
  CapacityReply Capacity();
  // Is a request with this id not answered yet? O(1).
  bool IsOpen(const RequestId& id);
  // NotFound for an id that is not open. As of the last Step or Flush. For people who ask, not for
  // every message: O(what waits + what runs).
  absl::StatusOr<RequestStatus> Find(const RequestId& id);

  // Dies if an invariant is broken: ledger against dispatched requests, queue bounds.
  void Audit() const;

 private:
  std::unique_ptr<router::RouterImpl> impl_;
};

}  // namespace kvern
