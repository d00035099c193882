// How long a request will wait: for blocks, by the expected ends of what runs, and for prefill, by
// the measured rate.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// The snapshot below costs a pass over all that runs; it is taken this often at most, and where so
// much runs that passes would take a greater part of the time, less often.
constexpr Duration kSnapshotAge = 10 * kMillisecond;
constexpr Duration kSnapshotAgePerRequest = 1 * kMicrosecond;

// What is longer than a limit is said to be, where both are shown in whole milliseconds.
Duration MillisecondsUp(Duration time) { return (time + kMillisecond - 1) / kMillisecond; }

// Its limit of the time to the first token, and what set it.
std::string TtftText(const Request& request) {
  return absl::StrCat(request.TtftName(), " is ",
                      (request.ttft_deadline - request.arrival) / kMillisecond,
                      request.ttft_limit == TtftLimit::kService ? " ms" : "");
}

}  // namespace

void RouterImpl::RefreshDrain() {
  Duration age =
      std::max(kSnapshotAge, static_cast<Duration>(drain_.requests) * kSnapshotAgePerRequest);
  if (drain_.taken && now_ - drain_.taken_at < age) return;
  for (Tenant* tenant : drain_.limited) tenant->releases.Clear();
  drain_ = Drain();
  drain_.taken = true;
  drain_.taken_at = now_;
  PrefillLeft left[kNumMeasures];
  Measure best = Measure::kNone;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    const bool works = WorkHold(group).none();
    DrainRequests(group, works);
    drain_.requests += group.running.size();
    if (!works) continue;
    ++drain_.groups;
    const Measure measure = MeasureOf(group);
    if (drain_.sample == nullptr || measure >= best) {
      best = measure;
      drain_.sample = &group;
    }
    PrefillLeft& its = left[static_cast<size_t>(measure)];
    its.tokens += PrefillBacklog(group);
    its.time += PrefillTime(group, PrefillBacklog(group));
    uint64_t limit = StandardLimit(group).tokens_pool();
    drain_.free_blocks += limit - std::min(limit, ReservedBlocks(group).tokens_pool());
  }
  if (drain_.groups == 0) return;
  // Groups that are measured less well than the best are taken for its like: they just came.
  Duration backlog = left[static_cast<size_t>(best)].time;
  for (size_t less = 0; less < static_cast<size_t>(best); ++less) {
    backlog += PrefillTime(*drain_.sample, left[less].tokens);
  }
  drain_.prefill_backlog = backlog / static_cast<Duration>(drain_.groups);
}

RouterImpl::Measure RouterImpl::MeasureOf(const Group& group) const {
  if (!group.steps.known(now_)) return Measure::kNone;
  return now_ < group.steps.speed().trusted_until ? Measure::kTrusted : Measure::kOnce;
}

void RouterImpl::DrainRequests(const Group& group, bool works) {
  Duration step = group.steps.MeanStep(now_);
  for (Request* request : group.running) {
    Foresee(*request);
    uint64_t produced = std::min(request->Produced(), request->expected_tokens);
    auto steps = static_cast<Duration>(request->expected_tokens);
    auto rest = steps - static_cast<Duration>(produced);
    Duration delay = request->answered ? 0 : rest * step;
    NoteQuotaRelease(*request, delay, steps * step);
    if (!works) continue;
    uint64_t blocks =
        request->guaranteed() ? request->need.tokens_pool() : ExpectedFinalBlocks(*request);
    drain_.curve.Add(delay, steps * step, blocks);
  }
}

void RouterImpl::NoteQuotaRelease(const Request& request, Duration delay, Duration whole) {
  Tenant& tenant = *request.tenant;
  if (tenant.config.max_blocks == 0) return;
  if (tenant.releases.empty()) drain_.limited.push_back(&tenant);
  tenant.releases.Add(delay, whole, request.need.tokens_pool());
}

uint64_t RouterImpl::SizesFor(const Request& request) {
  if (queue_.empty() || groups_.SmallestTotal() == groups_.LargestTotal()) return kAnySize;
  FindCandidates();
  if (candidates_.empty()) return kAnySize;
  uint64_t most = LargestBelow(candidates_[0]->need.tokens_pool());
  return request.need.tokens_pool() <= most ? most : kAnySize;
}

std::optional<RouterImpl::Wait> RouterImpl::PredictWait(const Request& request) {
  RefreshDrain();
  Ahead ahead = queue_.AheadOf(request, SizesFor(request));
  if (drain_.groups == 0 || !drain_.sample->steps.known(now_)) return std::nullopt;
  Duration for_blocks = 0;
  if (ahead.blocks > drain_.free_blocks) {
    for_blocks = drain_.curve.Until(ahead.blocks - drain_.free_blocks);
    if (for_blocks == kTimeMax) for_blocks = 0;  // nothing runs: it is next
  }
  auto groups = static_cast<Duration>(drain_.groups);
  uint64_t others =
      ahead.prompt_tokens - std::min<uint64_t>(ahead.prompt_tokens, request.prompt_tokens);
  Duration for_prefill = drain_.prefill_backlog + PrefillTime(*drain_.sample, others) / groups;
  Duration for_groups = PrefillAtOnce(request) ? 0 : std::max(for_blocks, for_prefill);
  Duration for_quota = WaitForQuota(request, ahead, drain_.sample->steps.MeanStep(now_));
  return Wait{std::max(for_groups, for_quota), for_quota > for_groups};
}

Duration RouterImpl::WaitForQuota(const Request& request, const Ahead& ahead, Duration step) const {
  const Tenant& tenant = *request.tenant;
  uint64_t most = tenant.config.max_blocks;
  uint64_t wanted = tenant.running_blocks + ahead.own_worst_blocks;
  if (most == 0 || wanted <= most) return 0;
  Duration wait = tenant.releases.UntilByTurns(wanted - most);
  if (wait != kTimeMax) return wait;
  return TurnsOf(request, wanted - most, most, step);  // all of its tenant's are yet to start
}

Duration RouterImpl::TurnsOf(const Request& request, uint64_t blocks, uint64_t of, Duration step) {
  constexpr unsigned __int128 kLongest = kTimeMax / 2;
  auto turn = static_cast<unsigned __int128>(step) * request.expected_tokens;
  return static_cast<Duration>(std::min(turn * blocks / of, kLongest));
}

RouterImpl::Rate RouterImpl::RateOf(const Group& group) const {
  if (!group.complete() || group.steps.speed().known_until == 0) return {};
  return {group.steps.speed(), ChunkOf(group), StandardLimit(group).tokens_pool()};
}

void RouterImpl::KeepRate(const Group& group) {
  Rate rate = RateOf(group);
  if (rate.speed.known_until > last_rate_.speed.known_until) last_rate_ = rate;
}

std::optional<Duration> RouterImpl::WaitAtLastRate(const Request& request) {
  RefreshDrain();
  Rate last = last_rate_;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Rate rate = RateOf(groups_.at(i));
    if (rate.speed.known_until > last.speed.known_until) last = rate;
  }
  if (last.blocks == 0) return std::nullopt;
  last.speed.known_until = kTimeMax;  // it is too old to decide by, and the best there is to tell
  Ahead ahead = queue_.AheadOf(request);
  uint64_t beyond = ahead.blocks - std::min(ahead.blocks, last.blocks);
  Duration for_blocks = TurnsOf(request, beyond, last.blocks, last.speed.mean);
  uint64_t others =
      ahead.prompt_tokens - std::min<uint64_t>(ahead.prompt_tokens, request.prompt_tokens);
  Duration for_prefill = last.speed.Prefill(now_, others, last.chunk);
  return std::max({for_blocks, for_prefill, WaitForQuota(request, ahead, last.speed.mean)});
}

std::optional<Duration> RouterImpl::PrefillAtOnce(const Request& request) const {
  if (request.phase == Phase::kQueued) return std::nullopt;  // it was not sent there
  // One that waits, and goes first to a group of so many blocks.
  auto before = [&](uint64_t blocks) {
    return queue_.AnyBefore(request.band, [&](const Request& other) {
      return other.need.tokens_pool() <= blocks && QuotaHold(other).none();
    });
  };
  if (before(groups_.SmallestTotal())) return std::nullopt;
  std::optional<Duration> least;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupLoad& load = groups_.load(i);
    if (!load.takes_work || load.busy) continue;
    Duration prefill = IdlePrefill(load, request);
    // A group's own entry is looked at last: there may be thousands.
    if (least && prefill >= *least) continue;
    const Group& group = groups_.at(i);
    if (!StandingHold(group, request).none()) continue;
    if (!before(group.ledger->total().tokens_pool())) least = prefill;
  }
  return least;
}

Duration RouterImpl::IdlePrefill(const GroupLoad& load, const Request& request) const {
  if (now_ >= load.speed.trusted_until) return 0;  // else nothing would put it right
  return load.speed.Prefill(now_, request.prompt_tokens, load.chunk);
}

Duration RouterImpl::OwnPrefill(const Request& request) {
  if (std::optional<Duration> at_once = PrefillAtOnce(request)) return *at_once;
  RefreshDrain();
  if (drain_.groups == 0) return 0;
  uint64_t tokens = request.prompt_tokens;
  // A long prompt leaves a part of each step to short ones that come after it.
  if (tokens > ChunkOf(*drain_.sample)) tokens += tokens / (kShortPromptShare - 1);
  return PrefillTime(*drain_.sample, tokens);
}

Refusal RouterImpl::CheckWait(const Request& request) {
  std::optional<Wait> wait = PredictWait(request);
  // No group is live, or none has said how fast it is: until the deadline.
  if (!wait) return CheckPauses(request);
  Duration prefill = OwnPrefill(request);
  Duration budget = request.ttft_deadline - now_;
  if (prefill > budget) {
    return {ErrorCode::kDeadlineExceeded,
            absl::StrCat(TtftText(request), ", the first token is expected after ",
                         MillisecondsUp(now_ - request.arrival + prefill),
                         " ms even without a wait, for the prefill of ", request.prompt_tokens,
                         " tokens"),
            {}};
  }
  Duration limit = std::min(budget - prefill, config_.queue_wait_max);
  if (wait->time <= limit) return {};
  std::string why = "the service's --queue-seconds";
  if (limit != config_.queue_wait_max) {
    why = absl::StrCat(TtftText(request), ", the prefill takes ", MillisecondsUp(prefill));
  }
  std::string what = wait->for_quota ? absl::StrCat("for this tenant's own blocks, at most ",
                                                    request.tenant->config.max_blocks, " at once,")
                                     : "for KV blocks and prefill";
  Refusal refusal{ErrorCode::kOverloaded,
                  absl::StrCat("the wait ", what, " is expected to be ", MillisecondsUp(wait->time),
                               " ms, allowed: ", limit / kMillisecond, " (", why, ")"),
                  {}};
  refusal.details.retry_after_ms = Jittered(wait->time - limit);
  return refusal;
}

Refusal RouterImpl::CheckPauses(const Request& request) {
  Time first = kTimeMax;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const Group& group = groups_.at(i);
    // Of any other it is not known when it takes work, if it does not now.
    if (WorkHold(group).why != Why::kBreaker) return {};
    first = std::min(first, std::max(group.breaker.closed_until(), now_));
  }
  if (groups_.size() == 0 || first <= request.ttft_deadline) return {};
  Refusal refusal{ErrorCode::kUnavailable,
                  absl::StrCat("every group failed too often, the first is tried again in ",
                               MillisecondsUp(first - now_), " ms; ", TtftText(request)),
                  {}};
  refusal.details.retry_after_ms = Jittered(first - now_);
  return refusal;
}

uint64_t RouterImpl::Jittered(Duration wait) {
  // Bounds of the advice: below, a retry only adds load; above, the prediction means nothing.
  constexpr uint64_t kMinRetryMs = 100;
  constexpr uint64_t kMaxRetryMs = 40'000;  // with its jitter, a minute
  auto ms = static_cast<uint64_t>(std::max<Duration>(wait, 0) / kMillisecond);
  uint64_t base = std::clamp(ms, kMinRetryMs, kMaxRetryMs);
  return base + rng_.Below(base / 2 + 1);  // so that the refused do not return together
}

Duration RouterImpl::HalfQueueTime() {
  RefreshDrain();
  if (drain_.groups == 0) return kSecond;
  uint64_t blocks = queue_.expected_blocks() / 2;
  Duration wait = blocks > drain_.free_blocks ? drain_.curve.Until(blocks - drain_.free_blocks) : 0;
  return wait == kTimeMax ? kSecond : wait;
}

}  // namespace kvern::router
