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

}  // namespace

void RouterImpl::RefreshDrain() {
  Duration age =
      std::max(kSnapshotAge, static_cast<Duration>(drain_.requests) * kSnapshotAgePerRequest);
  if (drain_.taken && now_ - drain_.taken_at < age) return;
  drain_ = Drain();
  drain_.taken = true;
  drain_.taken_at = now_;
  Duration backlog = 0;
  uint64_t unmeasured = 0;  // backlog of groups that just came: they are taken for others' like
  for (size_t i = 0; i < groups_.size(); ++i) {
    Group& group = groups_.at(i);
    if (!WorkHold(group).none()) continue;
    ++drain_.groups;
    const bool measured = group.steps.known(now_);
    if (measured || drain_.sample == nullptr) drain_.sample = &group;
    if (measured) {
      backlog += PrefillTime(group, PrefillBacklog(group));
    } else {
      unmeasured += PrefillBacklog(group);
    }
    uint64_t limit = StandardLimit(group).tokens_pool();
    drain_.free_blocks += limit - std::min(limit, ReservedBlocks(group).tokens_pool());
    Duration step = group.steps.MeanStep(now_);
    drain_.requests += group.running.size();
    for (Request* request : group.running) {
      Foresee(*request);
      uint64_t produced = std::min(request->Produced(), request->expected_tokens);
      auto steps = static_cast<Duration>(request->expected_tokens);
      auto rest = steps - static_cast<Duration>(produced);
      uint64_t blocks =
          request->guaranteed() ? request->need.tokens_pool() : ExpectedFinalBlocks(*request);
      drain_.curve.Add(request->answered ? 0 : rest * step, steps * step, blocks);
    }
  }
  if (drain_.groups == 0) return;
  backlog += PrefillTime(*drain_.sample, unmeasured);
  drain_.prefill_backlog = backlog / static_cast<Duration>(drain_.groups);
}

std::optional<Duration> RouterImpl::PredictWait(const Request& request) {
  RefreshDrain();
  Ahead ahead = queue_.AheadOf(request);
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
  return std::max(for_blocks, for_prefill);
}

RouterImpl::Rate RouterImpl::RateOf(const Group& group) const {
  if (!group.complete() || group.steps.speed().known_until == 0) return {};
  return {group.steps.speed(), ChunkOf(group), StandardLimit(group).tokens_pool()};
}

void RouterImpl::KeepRate(const Group& group) {
  Rate rate = RateOf(group);
  if (rate.speed.known_until > last_rate_.speed.known_until) last_rate_ = rate;
}

std::optional<Duration> RouterImpl::WaitAtLastRate(const Request& request) const {
  Rate last = last_rate_;
  for (size_t i = 0; i < groups_.size(); ++i) {
    Rate rate = RateOf(groups_.at(i));
    if (rate.speed.known_until > last.speed.known_until) last = rate;
  }
  if (last.blocks == 0) return std::nullopt;
  last.speed.known_until = kTimeMax;  // it is too old to decide by, and the best there is to tell
  Ahead ahead = queue_.AheadOf(request);
  // What finds no free blocks waits for turns of those that do; a turn is as long as an answer.
  uint64_t beyond = ahead.blocks - std::min(ahead.blocks, last.blocks);
  auto turn = static_cast<unsigned __int128>(last.speed.mean) * request.expected_tokens;
  unsigned __int128 for_blocks = turn * beyond / last.blocks;
  uint64_t others =
      ahead.prompt_tokens - std::min<uint64_t>(ahead.prompt_tokens, request.prompt_tokens);
  Duration for_prefill = last.speed.Prefill(now_, others, last.chunk);
  unsigned __int128 longest = kTimeMax;
  return std::max(static_cast<Duration>(std::min(for_blocks, longest)), for_prefill);
}

Duration RouterImpl::OwnPrefill(const Request& request) {
  RefreshDrain();
  if (drain_.groups == 0) return 0;
  uint64_t tokens = request.prompt_tokens;
  // A long prompt leaves a part of each step to short ones that come after it.
  if (tokens > ChunkOf(*drain_.sample)) tokens += tokens / (kShortPromptShare - 1);
  return PrefillTime(*drain_.sample, tokens);
}

Refusal RouterImpl::CheckWait(const Request& request) {
  std::optional<Duration> wait = PredictWait(request);
  if (!wait) return {};  // no group is live, or none has said how fast it is: until the deadline
  Duration prefill = OwnPrefill(request);
  Duration budget = request.ttft_deadline - now_;
  auto deadline = [&] {
    return absl::StrCat(request.TtftName(), " is ",
                        (request.ttft_deadline - request.arrival) / kMillisecond,
                        request.service_set_ttft ? " ms" : "");
  };
  if (prefill > budget) {
    return {ErrorCode::kDeadlineExceeded,
            absl::StrCat(deadline(), ", the first token is expected after ",
                         MillisecondsUp(now_ - request.arrival + prefill),
                         " ms even without a wait, for the prefill of ", request.prompt_tokens,
                         " tokens"),
            {}};
  }
  Duration limit = std::min(budget - prefill, config_.queue_wait_max);
  if (*wait <= limit) return {};
  std::string why = limit == config_.queue_wait_max
                        ? "the service's --queue-seconds"
                        : absl::StrCat(deadline(), ", the prefill takes ", MillisecondsUp(prefill));
  Refusal refusal{
      ErrorCode::kOverloaded,
      absl::StrCat("the wait for KV blocks and prefill is expected to be ", MillisecondsUp(*wait),
                   " ms, allowed: ", limit / kMillisecond, " (", why, ")"),
      {}};
  refusal.details.retry_after_ms = Jittered(*wait - limit);
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
