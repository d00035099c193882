// One open request, from its reservation of queue room to the release of its KV blocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "cluster/base/time.h"
#include "router/core/kept_deltas.h"
#include "router/core/pool_blocks.h"
#include "router/core/router.h"
#include "router/core/text_filter.h"
#include "schemas/messages.h"

namespace kvern::router {

struct Group;
struct Tenant;

// One of the n answers.
struct Choice {
  uint32_t worker_next = 0;      // position of the next token the worker may report
  uint32_t sent = 0;             // tokens sent to the client or kept for it, the charged ones
  bool worker_done = false;      // the worker reported its end
  bool client_done = false;      // its finish reason is sent or kept
  uint64_t cancel_sequence = 0;  // the command that cancels it at the worker; 0: none
  Time last_delivery = 0;
  std::unique_ptr<TextFilter> filter;  // null without a tokenizer
};

// Which limit a request's first token has: the nearest.
enum class TtftLimit : uint8_t {
  kOwn,
  kService,  // the request set none
  kWhole,    // its deadline to the end
};

enum class Phase : uint8_t {
  kTokenizing,  // the text pool has it; holds queue room until it is answered
  kArrived,     // its ids are being looked at; holds queue room
  kQueued,      // in line
  kRunning,     // dispatched
  kUnread,      // its worker let go; its reader has not got it all
};

// A request leaves the table when both sides are through with it: `answered` (the client has its
// one terminal answer, or is gone) and whoever worked on it (text pool, worker) has let go.
// What each token of a stream needs comes first, and is kHotBytes long.
struct Request {
  static constexpr size_t kHotBytes = 320;

  RequestId id;
  Group* group = nullptr;  // while running
  Tenant* tenant = nullptr;
  PeerId client = 0;
  Epoch epoch = 0;  // 1 is the first attempt
  uint32_t n = 1;
  uint64_t dispatch_sequence = 0;
  ServiceClass service_class = ServiceClass::kStandard;
  uint8_t band = 0;  // its priority
  Phase phase = Phase::kArrived;
  bool answered = false;
  bool got_token = false;  // the worker has reported one, in this epoch
  bool closing = false;    // listed in Group::closing

  // ---- its reader
  std::unique_ptr<KeptDeltas> kept;  // while paused: not empty
  uint64_t delivered = 0;            // tokens sent to the client, of all choices
  uint64_t consumed = 0;             // of these, taken by the reader as far as its client said
  Time first_delta = -1;             // -1: none yet
  Time last_delta = 0;
  Duration itl_max = 0;

  // ---- while it runs: output tokens per choice it is expected to come to, and when to ask again
  uint32_t expected_tokens = 0;
  uint32_t forecast_until = 0;
  uint32_t prompt_tokens = 0;
  absl::InlinedVector<Choice, 1> choices;
  PoolBlocks need;  // worst case

  ResolvedSampling sampling;
  std::vector<std::string> stop;
  TokenIds prompt;           // moves into the dispatch
  uint64_t queue_bytes = 0;  // what it holds of the queue's bytes

  // ---- while it waits
  uint64_t expected_blocks = 0;  // to its expected end, as of its arrival
  uint32_t passed = 0;           // later requests dispatched before it because it did not fit
  bool bypassed = false;         // some went to groups that are too small for it
  Request* previous_in_line = nullptr;
  Request* next_in_line = nullptr;

  Time arrival = 0;
  Time ttft_deadline = kTimeMax;  // while it waits
  TtftLimit ttft_limit = TtftLimit::kOwn;  // what set it
  Time deadline = kTimeMax;       // to its end
  Time timer_at = kTimeMax;       // of its entry in Timers; kTimeMax: none
  Time dispatched_at = 0;
  Time cancelled_at = -1;  // when the wait for the worker's release began; -1: not cancelled
  Time took_at = 0;  // while paused: when its reader last took some; of the time it was listened to

  // Places in the lists that hold it, for removal in constant time.
  size_t client_index = 0;
  size_t group_index = 0;
  size_t paused_index = 0;

  bool AllClientDone() const {
    for (const Choice& choice : choices) {
      if (!choice.client_done) return false;
    }
    return true;
  }
  // Its deadline to the first token, by the name of what set it.
  const char* TtftName() const {
    switch (ttft_limit) {
      case TtftLimit::kOwn:
        return "ttft_deadline_ms";
      case TtftLimit::kService:
        return "the service's --default-ttft-deadline";
      case TtftLimit::kWhole:
        return "deadline_ms";
    }
    return "";
  }
  bool guaranteed() const { return service_class == ServiceClass::kGuaranteed; }
  // Output tokens of its longest unfinished choice, as the worker reported.
  uint32_t Produced() const {
    uint32_t produced = 0;
    for (const Choice& choice : choices) {
      if (!choice.worker_done) produced = std::max(produced, choice.worker_next);
    }
    return produced;
  }
  // Nothing of it is left at a worker that has applied all commands up to `acked`.
  bool WorkerReleased(uint64_t acked) const {
    for (const Choice& choice : choices) {
      bool cancelled = choice.cancel_sequence != 0 && choice.cancel_sequence <= acked;
      if (!choice.worker_done && !cancelled) return false;
    }
    return true;
  }
};

}  // namespace kvern::router
