// From a GenerateRequest to its place in the queue. Room is reserved before any work is done.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "cluster/capacity/kv_budget.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

Time DeadlineAfter(Time now, uint32_t milliseconds) {
  return now + static_cast<Duration>(milliseconds) * kMillisecond;
}

}  // namespace

void RouterImpl::OnGenerate(Client& client, GenerateRequest message) {
  RequestId id = message.request_id;
  while (id.IsZero() || (message.request_id.IsZero() && requests_.Find(id) != nullptr)) {
    id = {rng_.Next(), rng_.Next()};
  }
  message.request_id = id;
  uint64_t bytes = InputBytes(message);
  Refusal refusal = Admissible(client, message, bytes);
  if (!refusal.ok()) {
    CountError(refusal.code, *client.tenant);
    return SendError(client.id, *client.tenant, id, std::move(refusal));
  }
  Request& request = OpenRequest(client, id, message);
  queue_.TakeRoom(request, bytes);
  SetTimer(request, request.ttft_deadline);
  if (message.prompt_token_ids) {
    Enqueue(request, *std::move(message.prompt_token_ids));
    return;
  }
  request.phase = Phase::kTokenizing;
  queue_.PushText(request);
  Tokenize job{id, {}, client.tenant->number, client.tenant->config.weight, request.band,
               config_.max_seq_len};
  if (message.prompt) {
    job.input = *std::move(message.prompt);
  } else {
    job.input = *std::move(message.messages);
  }
  out_->tokenize.push_back(std::move(job));
}

Refusal RouterImpl::Admissible(Client& client, const GenerateRequest& message, uint64_t bytes) {
  if (const std::unique_ptr<Request>* open = requests_.Find(message.request_id)) {
    Refusal refusal{
        ErrorCode::kInvalidArgument,
        absl::StrCat("request_id ", message.request_id.ToString(), " is already in use"),
        {}};
    refusal.details.still_open = (*open)->client == client.id && !(*open)->answered;
    return refusal;
  }
  if (draining_) {
    Refusal refusal{ErrorCode::kUnavailable, "the router is draining", {}};
    refusal.details.retry_after_ms = Jittered(std::max(kSecond, HalfQueueTime()));
    return refusal;
  }
  if (Refusal r = ValidateRequest(config_, message); !r.ok()) return r;
  int32_t ceiling = client.tenant->config.priority_ceiling;
  if (message.priority < 0 || message.priority > ceiling) {
    return {ErrorCode::kInvalidArgument,
            absl::StrCat("priority is ", message.priority, ", allowed for this tenant: 0",
                         ceiling > 0 ? absl::StrCat(" to ", ceiling) : "",
                         " (its priority_ceiling in the service's --tenants)"),
            {}};
  }
  uint32_t max_tokens = message.max_tokens.value_or(config_.default_max_tokens);
  if (message.prompt_token_ids || max_tokens >= config_.max_seq_len) {
    // A text has a token at least; how many is known when it is tokenised, and checked then.
    uint64_t prompt_tokens = message.prompt_token_ids ? message.prompt_token_ids->size() : 1;
    if (Refusal r = CheckFits(prompt_tokens, max_tokens, message.n); !r.ok()) return r;
  }
  if (bytes > config_.queue_bytes) {
    return {ErrorCode::kInvalidArgument,
            absl::StrCat("the input has ", bytes, " bytes, allowed: ", config_.queue_bytes,
                         " (the service's --queue-bytes)"),
            {}};
  }
  if (queue_.HasRoom(bytes)) return {};
  if (Refusal r = CheckBeforeMakingRoom(client, message); !r.ok()) return r;
  if (!MakeRoom(*client.tenant, static_cast<size_t>(message.priority), bytes)) {
    return Overloaded(QueueFull());
  }
  return {};
}

Refusal RouterImpl::CheckBeforeMakingRoom(Client& client, const GenerateRequest& message) {
  Request probe;
  probe.tenant = client.tenant;
  probe.service_class = message.service_class;
  probe.band = static_cast<uint8_t>(message.priority);
  probe.n = message.n;
  probe.sampling.max_tokens = message.max_tokens.value_or(config_.default_max_tokens);
  // Of a text, no more is known than that it has a token.
  bool known = message.prompt_token_ids.has_value();
  probe.prompt_tokens = known ? static_cast<uint32_t>(message.prompt_token_ids->size()) : 1;
  probe.arrival = now_;
  SetDeadlines(message, probe);
  SizeUp(probe);
  if (!known) {
    // Choices share the full blocks of their prompt: of a longer one they may need fewer.
    probe.need = Smaller(probe.need,
                         BlocksNeeded(kBlockSize, probe.sampling.max_tokens, probe.n, kBlockSize));
    probe.expected_blocks = std::min(probe.expected_blocks, probe.need.tokens_pool());
  }
  if (probe.ttft_deadline <= now_) {
    return {ErrorCode::kDeadlineExceeded,
            absl::StrCat(probe.TtftName(), " is 0, and others wait"),
            {}};
  }
  if (Refusal r = CheckQuota(*probe.tenant, probe.need.tokens_pool()); !r.ok()) return r;
  return CheckWait(probe);
}

void RouterImpl::SetDeadlines(const GenerateRequest& message, Request& request) const {
  if (message.deadline_ms) request.deadline = DeadlineAfter(now_, *message.deadline_ms);
  if (message.ttft_deadline_ms) {
    request.ttft_limit = TtftLimit::kOwn;
    request.ttft_deadline = DeadlineAfter(now_, *message.ttft_deadline_ms);
  } else {
    request.ttft_limit = TtftLimit::kService;
    request.ttft_deadline = now_ + config_.default_ttft_deadline;
  }
  // What would have its first token only after that is not begun.
  if (request.deadline < request.ttft_deadline) {
    request.ttft_limit = TtftLimit::kWhole;
    request.ttft_deadline = request.deadline;
  }
}

void RouterImpl::SizeUp(Request& request) const {
  request.need =
      BlocksNeeded(request.prompt_tokens, request.sampling.max_tokens, request.n, kBlockSize);
  Foresee(request);
  request.expected_blocks =
      request.guaranteed() ? request.need.tokens_pool() : ExpectedFinalBlocks(request);
}

bool RouterImpl::MakeRoom(const Tenant& tenant, size_t band, uint64_t bytes) {
  Request* excess = queue_.Excess(tenant, band);
  // One makes way for one; a large input does not cost many others their place.
  if (excess == nullptr || !queue_.HasRoomWithout(*excess, bytes)) return false;
  Fail(*excess, Overloaded("it made way for a request with more right to wait"));
  return true;
}

Refusal RouterImpl::CheckQuota(Tenant& tenant, uint64_t need) {
  uint64_t most = tenant.config.max_blocks;
  if (most != 0 && need > most) {
    Refusal refusal{
        ErrorCode::kQuotaExceeded,
        absl::StrCat("the request needs ", need, " KV blocks, this tenant may have ", most),
        {}};
    refusal.details.needed_blocks = need;
    refusal.details.available_blocks = most;
    return refusal;
  }
  RefillQuota(tenant, now_);
  Duration debt = QuotaDebt(tenant);
  if (debt == 0) return {};
  Refusal refusal{ErrorCode::kQuotaExceeded,
                  absl::StrCat("this tenant has used its ", tenant.config.block_seconds_per_minute,
                               " KV-block-seconds per minute"),
                  {}};
  // Exactly known, so not a moment earlier; those who were refused do not return together.
  auto ms = static_cast<uint64_t>(debt / kMillisecond) + 1;
  refusal.details.retry_after_ms = ms + rng_.Below(ms / 10 + 1);
  return refusal;
}

Request& RouterImpl::OpenRequest(Client& client, RequestId id, GenerateRequest& message) {
  auto owned = std::make_unique<Request>();
  owned->id = id;
  owned->client = client.id;
  owned->tenant = client.tenant;
  owned->service_class = message.service_class;
  owned->band = static_cast<uint8_t>(message.priority);
  owned->n = message.n;
  static_cast<SamplingParams&>(owned->sampling) = std::move(message.sampling);
  owned->sampling.max_tokens = message.max_tokens.value_or(config_.default_max_tokens);
  owned->sampling.seed = message.seed ? *message.seed : rng_.Next();
  owned->stop = std::move(message.stop);
  owned->arrival = now_;
  SetDeadlines(message, *owned);
  Request& request = *requests_.Insert(id, std::move(owned));
  clients_.Open(client, request);
  ArmClientLease(client, config_.client_lease);
  return request;
}

void RouterImpl::Enqueue(Request& request, TokenIds ids) {
  request.prompt = std::move(ids);
  request.prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  SizeUp(request);
  Refusal too_large = CheckFits(request.prompt_tokens, request.sampling.max_tokens, request.n);
  if (!too_large.ok()) return Fail(request, std::move(too_large));
  if (Refusal r = CheckQuota(*request.tenant, request.need.tokens_pool()); !r.ok()) {
    return Fail(request, std::move(r));
  }
  if (!queue_.ResizeRoom(request, request.prompt.size() * sizeof(uint32_t))) {
    return Fail(request, Overloaded(QueueFull()));
  }
  if (Refusal r = CheckWait(request); !r.ok()) return Fail(request, std::move(r));
  request.phase = Phase::kQueued;
  queue_.Push(request);
  dispatch_due_ = true;
  ++counters_.accepted;
  ++request.tenant->accepted;
  SendToClient(request.client, Accepted{request.id, request.sampling.seed, request.prompt_tokens,
                                        CreditOf(*request.tenant)});
}

Refusal RouterImpl::CheckFits(uint64_t prompt_tokens, uint32_t max_tokens, uint32_t n) const {
  uint64_t total = prompt_tokens + max_tokens;
  uint64_t need = BlocksNeeded(prompt_tokens, max_tokens, n, kBlockSize);
  uint64_t largest = groups_.LargestTotal();  // 0: no group known, decided when one is
  bool too_long = total > config_.max_seq_len;
  bool too_big = largest > 0 && need > largest;
  if (!too_long && !too_big) return {};

  Refusal refusal{ErrorCode::kNeverFits, "", {}};
  refusal.details.needed_blocks = need;
  refusal.details.needed_total_tokens = total;
  refusal.details.largest_total_tokens = config_.max_seq_len;
  if (largest > 0) {
    refusal.details.available_blocks = largest;
    refusal.details.largest_total_tokens = std::min<uint64_t>(
        config_.max_seq_len, TokensThatFit(largest, prompt_tokens, n, kBlockSize));
  }
  if (max_tokens >= config_.max_seq_len) {
    refusal.message =
        absl::StrCat("max_tokens is ", max_tokens, ", allowed: prompt and output together at most ",
                     config_.max_seq_len, " tokens");
  } else if (too_long) {
    refusal.message =
        absl::StrCat("prompt + max_tokens is ", total, " tokens, allowed: ", config_.max_seq_len);
  } else {
    refusal.message =
        absl::StrCat("the request needs ", need, " KV blocks, the largest group has ", largest);
  }
  return refusal;
}

Refusal RouterImpl::TextTooLong(const Request& request) const {
  // How much longer nobody has counted.
  const uint64_t at_least = uint64_t{config_.max_seq_len} + 1;
  Refusal refusal = CheckFits(at_least, request.sampling.max_tokens, request.n);
  refusal.message =
      absl::StrCat("the prompt has more than ", config_.max_seq_len,
                   " tokens, allowed: prompt and output together at most ", config_.max_seq_len);
  refusal.details.needed_blocks.reset();
  refusal.details.available_blocks.reset();
  return refusal;
}

std::string RouterImpl::QueueFull() const {
  return absl::StrCat("the queue is full: ", queue_.entries(), " requests with ", queue_.bytes(),
                      " bytes wait, allowed: ", config_.queue_entries, " with ",
                      config_.queue_bytes, " (the service's --queue-entries, --queue-bytes)");
}

Refusal RouterImpl::Overloaded(std::string what) {
  Refusal refusal{ErrorCode::kOverloaded, std::move(what), {}};
  refusal.details.retry_after_ms = Jittered(HalfQueueTime());
  return refusal;
}

void RouterImpl::RecheckQueue() {
  dispatch_due_ = true;
  drain_.taken = false;
  std::vector<std::pair<Request*, Refusal>> never_fit;
  queue_.ForEach([&](Request& request) {
    Refusal r = CheckFits(request.prompt_tokens, request.sampling.max_tokens, request.n);
    if (!r.ok()) never_fit.emplace_back(&request, std::move(r));
  });
  for (auto& [request, refusal] : never_fit) Fail(*request, std::move(refusal));
}

void RouterImpl::SetTimer(Request& request, Time at) {
  Timer timer{request.timer_at, TimerKind::kRequest, request.id.high, request.id.low};
  if (timer.at != kTimeMax) timers_.Remove(timer);
  request.timer_at = timer.at = at;
  if (at != kTimeMax) timers_.Add(timer);
}

}  // namespace kvern::router
