#include "tools/sim/checker.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"
#include "cluster/base/prefetch.h"
#include "cluster/capacity/kv_budget.h"
#include "worker/core/scheduler.h"

namespace kvern::sim {
namespace {

char Letter(uint32_t token) { return static_cast<char>('a' + token % 26); }

uint32_t PromptTokens(const GenerateRequest& request) {
  if (request.prompt_token_ids) return static_cast<uint32_t>(request.prompt_token_ids->size());
  if (request.prompt) return static_cast<uint32_t>(request.prompt->size());
  uint32_t tokens = 0;
  for (const ChatMessage& m : *request.messages) tokens += static_cast<uint32_t>(m.content.size());
  return tokens;
}

}  // namespace

Checker::Checker(const SimOptions& options, const std::vector<std::string>& tenants,
                 Report violation)
    : options_(options),
      violation_(std::move(violation)),
      silent_clients_(options.faults.AnyOf(
          {Fault::kClientFrozen, Fault::kClientPartitioned, Fault::kClientLinkSlow})),
      has_quota_(tenants.size()),
      max_blocks_(tenants.size()),
      running_blocks_(tenants.size()),
      buckets_(tenants.size()) {
  for (size_t i = 0; i < tenants.size(); ++i) {
    for (const TenantConfig& config : options.router.tenants) {
      if (config.name != tenants[i]) continue;
      max_blocks_[i] = config.max_blocks;
      has_quota_[i] = config.max_blocks > 0 || config.block_seconds_per_minute > 0;
      auto per_ms = static_cast<int64_t>(config.block_seconds_per_minute);
      // A minute's, and two milliseconds for the parts of one that the router may be ahead.
      buckets_[i] = {.per_ms = per_ms, .full = per_ms * 60'002, .left = per_ms * 60'002};
    }
  }
}

uint64_t Checker::NeedOf(const Record& record) const {
  return BlocksNeeded(record.prompt_tokens, record.max_tokens, record.n, kBlockSize);
}

void Checker::Issued(Time now, uint32_t client, uint32_t tenant, Ask& ask) {
  GenerateRequest& request = ask.request;
  // The place in records_ is the id, so that nothing has to be looked up.
  request.request_id = {uint64_t{client} + 1, records_.size() + 1};
  Record record;
  record.client = client;
  record.tenant = tenant;
  record.priority = request.priority;
  record.prompt_tokens = PromptTokens(request);
  record.max_tokens = request.max_tokens.value_or(options_.router.default_max_tokens);
  record.n = request.n;
  record.ignore_eos = request.sampling.ignore_eos;
  record.reads_text = options_.has_text;
  record.wants_logprobs = request.sampling.logprobs.has_value();
  record.guaranteed = request.service_class == ServiceClass::kGuaranteed;
  record.has_stop = !request.stop.empty();
  record.has_seed = request.seed.has_value();
  record.seed = request.seed.value_or(0);
  record.has_deadline = request.deadline_ms.has_value();
  record.ttft_deadline = request.ttft_deadline_ms
                             ? Duration{*request.ttft_deadline_ms} * kMillisecond
                             : options_.router.default_ttft_deadline;
  if (request.deadline_ms) {
    record.ttft_deadline =
        std::min(record.ttft_deadline, Duration{*request.deadline_ms} * kMillisecond);
  }
  record.bad = ask.bad;
  record.bad_ids = ask.bad_ids;
  record.repeated = ask.repeated;
  record.asked = now;
  record.choices.resize(request.n);
  for (Record::Choice& choice : record.choices) {
    if (record.reads_text) choice.text = std::make_unique<Record::Text>();
  }
  records_.Add(std::move(record));
  ++open_;
}

Record* Checker::Find(const RequestId& id) {
  if (id.low == 0 || id.low > records_.size()) return nullptr;
  Record& record = records_[id.low - 1];
  return uint64_t{record.client} + 1 == id.high ? &record : nullptr;
}

void Checker::Expect(const RequestId& id) const {
  constexpr size_t kHotBytes = 128;
  if (id.low != 0 && id.low <= records_.size()) Prefetch(&records_[id.low - 1], kHotBytes);
}

void Checker::Arrived(Time now, const RequestId& id) {
  if (Record* record = Find(id)) record->arrived = now;
}

void Checker::Cancelled(uint32_t client, const RequestId& id) {
  Record* record = Find(id);
  if (record->client == client) record->cancelled = true;
}

void Checker::Preempted(const RequestId& id, uint32_t times) {
  Record* record = Find(id);
  record->preemptions = std::max(record->preemptions, times);
  if (record->guaranteed) Violate("P1", id, "guaranteed, and yet preempted");
  if (times > kMaxPreemptions) Violate("P1", id, absl::StrCat("preempted ", times, " times"));
}

void Checker::ClientLost(uint32_t client, const std::vector<RequestId>& open, Incarnation heir) {
  for (const RequestId& id : open) {
    Record* record = Find(id);
    if (heir != 0) left_behind_[client].emplace_back(heir, id);
    if (record->client_lost) continue;
    record->client_lost = true;
    lost_.push_back(id);
    if (!record->over) --open_;
  }
}

void Checker::Introduced(uint32_t client, Incarnation incarnation) {
  auto found = left_behind_.find(client);
  if (found == left_behind_.end()) return;
  std::erase_if(found->second, [&](const std::pair<Incarnation, RequestId>& left) {
    if (left.first > incarnation) return false;
    Find(left.second)->forgotten = any_forgotten_ = true;
    return true;
  });
}

void Checker::End(Time now, Record& record) {
  record.over = true;
  record.ended = now;
  if (!record.client_lost) --open_;
}

void Checker::Dispatched(Time now, const Dispatch& dispatch, uint32_t group,
                         uint64_t group_blocks) {
  const RequestId& id = dispatch.request_id;
  Record* record = Find(id);
  if (record == nullptr) return Violate("S3", id, "dispatched, but nobody asked for it");
  if (record->dispatched && !record->repeated)
    Violate("S2", id, "dispatched twice without a new epoch");
  record->dispatched = true;
  record->dispatched_at = now;
  record->group = group;
  for (Record::Choice& choice : record->choices) choice.heard = 0;
  if (!record->client_lost && !std::exchange(record->holds_quota, true)) {
    running_blocks_[record->tenant] += NeedOf(*record);
  }
  if (now >= record->arrived + record->ttft_deadline) {
    Violate("S7", id, "started after its deadline");
  }
  if (NeedOf(*record) > group_blocks) Violate("S8", id, "larger than the group it was sent to");
  if (dispatch.prompt.size() != record->prompt_tokens || dispatch.n != record->n ||
      dispatch.sampling.max_tokens != record->max_tokens) {
    Violate("S1", id, "the dispatch is not what was asked for");
  }
}

void Checker::LinedUp(Time now, const RequestId& id) {
  const Record* record = Find(id);
  if (record == nullptr) return;
  Bucket& bucket = buckets_[record->tenant];
  if (bucket.per_ms == 0) return;
  int64_t now_ms = now / kMillisecond;
  int64_t refill = (now_ms - std::exchange(bucket.refilled_ms, now_ms)) * bucket.per_ms;
  bucket.left = std::min(bucket.full, bucket.left + refill);
  if (bucket.left <= 0) Violate("S6", id, "lined up, its tenant has used its block-seconds");
}

void Checker::TurnOver() {
  for (Bucket& bucket : buckets_) bucket.left -= std::exchange(bucket.used, 0);
  for (size_t tenant = 0; tenant < max_blocks_.size(); ++tenant) {
    uint64_t limit = max_blocks_[tenant];
    if (limit == 0 || running_blocks_[tenant] <= limit) continue;
    violation_(
        absl::StrCat("S6: a tenant runs ", running_blocks_[tenant], " blocks, allowed: ", limit));
  }
}

void Checker::Ended(Time now, Record& record, bool released) {
  if (!std::exchange(record.holds_quota, false)) return;
  uint64_t need = NeedOf(record);
  running_blocks_[record.tenant] -= need;
  if (!released || record.repeated) return;
  int64_t held_ms = (now - record.dispatched_at) / kMillisecond;
  buckets_[record.tenant].used += static_cast<int64_t>(need) * held_ms * 60;
}

Record* Checker::FindFor(uint32_t client, const RequestId& id, const char* what) {
  Record* record = Find(id);
  if (record == nullptr || record->client != client) {
    Violate("S3", id, absl::StrCat(what, " for a request that client ", client, " did not make"));
    return nullptr;
  }
  if (record->client_lost) return nullptr;  // of the process before
  // The second may have come after the end of the first, and then is a request like others.
  if (record->over && record->repeated) return nullptr;
  if (record->over) {
    Violate(record->error == ErrorCode::kCancelled ? "S10" : "S3", id,
            absl::StrCat(what, " after the terminal answer"));
    return nullptr;
  }
  return record;
}

void Checker::Read(Time now, uint32_t client, const RouterToClient& message,
                   std::vector<RequestId>& ended) {
  if (const auto* deltas = std::get_if<Deltas>(&message)) {
    constexpr size_t kAhead = 8;  // records whose memory is asked for before it is needed
    for (size_t i = 0; i < std::min(kAhead, deltas->deltas.size()); ++i) {
      Expect(deltas->deltas[i].request_id);
    }
    for (size_t i = 0; i < deltas->deltas.size(); ++i) {
      const Delta& delta = deltas->deltas[i];
      if (i + kAhead < deltas->deltas.size()) Expect(deltas->deltas[i + kAhead].request_id);
      Record* record = FindFor(client, delta.request_id, "a delta");
      if (record == nullptr) continue;
      ReadDelta(now, *record, delta);
      if (record->over) ended.push_back(delta.request_id);
    }
  } else if (const auto* accepted = std::get_if<Accepted>(&message)) {
    if (Record* record = FindFor(client, accepted->request_id, "Accepted")) {
      ReadAccepted(*record, *accepted);
    }
  } else if (const auto* error = std::get_if<RequestError>(&message)) {
    if (error->request_id.IsZero()) return;
    if (Record* record = FindFor(client, error->request_id, "an error")) {
      ReadError(now, *record, *error);
      if (record->over) ended.push_back(error->request_id);
    }
  }
}

void Checker::ReadAccepted(Record& record, const Accepted& accepted) {
  const RequestId& id = accepted.request_id;
  if (record.accepted) Violate("S3", id, "accepted twice");
  if (record.bad) Violate("S3", id, "accepted, but it is invalid");
  record.accepted = true;
  if (record.has_seed && record.seed != accepted.seed) {
    Violate("S1", id, "another seed than the client's");
  }
  record.seed = accepted.seed;
  for (uint32_t choice = 0; choice < record.n; ++choice) {
    record.choices[choice].voice = options_.model.VoiceOf(record.seed, choice);
  }
  if (accepted.prompt_tokens != record.prompt_tokens) Violate("S1", id, "prompt_tokens is wrong");
}

void Checker::ReadDelta(Time now, Record& record, const Delta& delta) {
  const RequestId& id = delta.request_id;
  if (!record.accepted) return Violate("S3", id, "a delta before Accepted");
  if (record.bad_ids) return Violate("S3", id, "answered, but it is invalid");
  if (delta.choice >= record.choices.size()) return Violate("S1", id, "an unknown choice");
  Record::Choice& choice = record.choices[delta.choice];
  if (choice.finished) return Violate("S1", id, "a delta after the choice's end");
  if (delta.position != choice.tokens) {
    return Violate("S1", id,
                   absl::StrCat("position ", delta.position, ", expected ", choice.tokens));
  }
  if (!delta.token_ids.empty()) {
    if (record.first_token < 0) record.first_token = now;
    record.last_token = now;
  }
  ReadTokens(record, choice, delta);
  if (delta.finish_reason != FinishReason::kNone) {
    choice.finished = true;
    ReadFinish(record, choice, delta);
  }
  bool all = std::all_of(record.choices.begin(), record.choices.end(),
                         [](const Record::Choice& each) { return each.finished; });
  if (all != delta.usage.has_value()) Violate("S3", id, "usage is not on the last delta alone");
  if (delta.usage && delta.usage->completion_tokens != record.tokens) {
    Violate("S3", id, "usage counts other tokens than were delivered");
  }
  if (all) End(now, record);
}

void Checker::ReadTokens(Record& record, Record::Choice& choice, const Delta& delta) {
  const RequestId& id = delta.request_id;
  for (uint32_t token : delta.token_ids) {
    if (token != options_.model.Token(choice.voice, choice.tokens)) {
      return Violate("S1", id, absl::StrCat("token ", token, " at position ", choice.tokens));
    }
    ++choice.tokens;
    ++record.tokens;
    choice.last_token = token;
    if (record.reads_text) choice.text->letters += Letter(token);
  }
  if (choice.tokens > record.max_tokens) Violate("S1", id, "more than max_tokens");
  size_t logprobs = record.wants_logprobs ? delta.token_ids.size() : 0;
  if (delta.logprobs.size() != logprobs) Violate("S1", id, "logprobs differ in number");
  if (record.reads_text) choice.text->delivered += delta.text.value_or("");
}

void Checker::ReadFinish(Record& record, const Record::Choice& choice, const Delta& delta) {
  const RequestId& id = delta.request_id;
  bool length = delta.finish_reason == FinishReason::kLength;
  const auto* stop = std::get_if<std::string>(&delta.stop_reason);
  const auto* stop_id = std::get_if<uint32_t>(&delta.stop_reason);
  if (choice.tokens == 0) return Violate("S1", id, "an end without a token");
  bool eos = choice.last_token == options_.model.eos && !record.ignore_eos;
  if (length && choice.tokens != record.max_tokens) Violate("S1", id, "ended too early");
  if (stop_id != nullptr && choice.last_token != *stop_id) Violate("S1", id, "another stop id");
  if (!length && stop == nullptr && stop_id == nullptr && !eos) {
    Violate("S1", id, "stopped for no reason");
  }
  if (record.reads_text) ReadText(record, choice, delta);
}

void Checker::ReadText(Record& record, const Record::Choice& choice, const Delta& delta) {
  const auto* stop = std::get_if<std::string>(&delta.stop_reason);
  std::string letters = choice.text->letters;
  if (stop != nullptr) {
    ++record.stop_strings;
    if (!letters.ends_with(*stop)) Violate("S1", delta.request_id, "stopped before its string");
    letters.resize(letters.size() - std::min(letters.size(), stop->size()));
  } else if (delta.finish_reason != FinishReason::kLength) {
    letters.pop_back();  // EOS and stop ids show no text
  }
  if (choice.text->delivered != letters)
    Violate("S1", delta.request_id, "the text is not the tokens'");
}

void Checker::ReadError(Time now, Record& record, const RequestError& error) {
  if (error.details.still_open) {  // of the two, this is the second
    if (!record.repeated) Violate("S3", error.request_id, "said to be open twice");
    return;
  }
  record.error = error.code;
  End(now, record);
  const ErrorDetails& details = error.details;
  bool invalid = error.code == ErrorCode::kInvalidArgument || error.code == ErrorCode::kNotFound ||
                 error.code == ErrorCode::kUnsupportedParameter ||
                 error.code == ErrorCode::kInternal;
  // Text may turn out to be ill-formed, and a client that was forgotten must say Hello again.
  if (invalid && !record.bad && !record.bad_ids && !record.reads_text &&
      error.message != kSayHello) {
    Violate("S3", error.request_id, absl::StrCat("refused as invalid: ", error.message));
  }
  bool slow = error.message.starts_with(kSlowReader);
  if (error.code == ErrorCode::kCancelled && !record.cancelled && !silent_clients_ && !slow) {
    Violate("S10", error.request_id, "cancelled, but not by its client");
  }
  if (error.code == ErrorCode::kNeverFits) {
    bool too_long = record.prompt_tokens + record.max_tokens > options_.router.max_seq_len;
    bool too_big = details.available_blocks && NeedOf(record) > *details.available_blocks;
    if (!too_long && !too_big) Violate("S8", error.request_id, "never_fits, but it does");
    uint64_t total = uint64_t{record.prompt_tokens} + record.max_tokens;
    if (details.largest_total_tokens && total <= *details.largest_total_tokens) {
      Violate("S8", error.request_id, "never_fits, and no longer than what is said to fit");
    }
  }
  if (error.code == ErrorCode::kQuotaExceeded) CheckQuota(record, error);
  bool started = record.dispatched && !record.repeated;  // else of the first of two, perhaps
  if (error.code == ErrorCode::kDeadlineExceeded && started && !record.has_deadline) {
    Violate("S7", error.request_id, "ended while running by a deadline that was met");
  }
  if (error.code == ErrorCode::kOverloaded && details.retry_after_ms.value_or(0) < 100) {
    Violate("S6", error.request_id, "overloaded without advice");
  }
}

void Checker::CheckQuota(const Record& record, const RequestError& error) {
  // By block-seconds until later; by blocks for good.
  if (error.details.retry_after_ms) {
    if (has_quota_[record.tenant]) return;
  } else if (uint64_t most = max_blocks_[record.tenant]; most > 0 && NeedOf(record) > most) {
    return;
  }
  Violate("S6", error.request_id, "quota_exceeded, but its tenant may have that much");
}

void Checker::AllAnswered() {
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    if (record.over || record.client_lost) continue;
    Violate("L1", {uint64_t{record.client} + 1, i + 1}, "no terminal answer");
  }
}

void Checker::Violate(const char* name, const RequestId& id, const std::string& what) {
  violation_(absl::StrCat(name, ": request ", id.low, ": ", what));
}

}  // namespace kvern::sim
