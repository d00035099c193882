// Where a request fits: the admission rule of each class, and the choice among the groups.
//
// A guaranteed request fits if its worst case does, beside the worst cases of the other guaranteed
// ones, the largest worst case of a standard one (so that the oldest of them always finishes), and
// the expected peak of the standard ones.
//
// A standard request fits if the expected peak of all that runs and itself stays below the
// watermark, and its worst case fits beside what is guaranteed.
//
// Neither is sent to a group whose prompts already fill one step and a half, unless its own is
// short.
#include <algorithm>

#include "cluster/base/check.h"
#include "router/core/router_impl.h"

namespace kvern::router {
namespace {

// Groups that are asked for a precise answer before a request waits: those that look best first.
constexpr int kGroupsTried = 8;
// Predictions that differ by less than this part are alike.
constexpr Duration kAlikeFinish = 8;

uint32_t Growth(const Request& request) {
  uint32_t growth = 0;
  for (const Choice& choice : request.choices) growth += choice.worker_done ? 0 : 1;
  return growth;
}

// What a request of `prompt` tokens holds when each of its choices has `output` tokens.
uint64_t TokensOf(const Request& request, uint64_t output) {
  return request.prompt_tokens + output * request.n;
}

Hold WithinOr(Why why, const PoolBlocks& blocks, const PoolBlocks& limit) {
  if (blocks.Within(limit)) return {};
  return {why, blocks.tokens_pool(), limit.tokens_pool()};
}

uint32_t Saturated(uint64_t count) {
  return static_cast<uint32_t>(std::min<uint64_t>(count, UINT32_MAX));
}

uint64_t Milliseconds(Duration time) { return static_cast<uint64_t>(time / kMillisecond); }

}  // namespace

uint64_t RouterImpl::ExpectedFinalBlocks(const Request& request) const {
  uint64_t blocks = ExpectedBlocks(TokensOf(request, request.expected_tokens), request.n);
  return std::min(blocks, request.need.tokens_pool());
}

void RouterImpl::Foresee(Request& request) const {
  uint32_t produced = request.Produced();
  uint32_t max_tokens = request.sampling.max_tokens;
  if (produced >= max_tokens) {
    request.expected_tokens = max_tokens;
    return;
  }
  if (produced < request.forecast_until && produced < request.expected_tokens) return;
  LengthForecast forecast(request.tenant->lengths, lengths_, config_.output_quantile_percent);
  request.expected_tokens = forecast.Total(produced, max_tokens);
  // The quantile moves with what was produced; an eighth more is the width of a bin.
  request.forecast_until = produced + 1 + produced / 8;
}

void RouterImpl::RefreshForecast(Group& group) const {
  if (!group.forecast_old) return;
  group.forecast_old = false;
  group.forecast.Clear();
  group.largest_standard = PoolBlocks();
  for (Request* request : group.running) {
    if (request->guaranteed()) continue;
    Foresee(*request);
    ForecastItem item;
    uint32_t produced = request->Produced();
    item.tokens = TokensOf(*request, produced);
    item.growth = Growth(*request);
    bool ending = request->answered || item.growth == 0;
    item.remaining =
        ending ? 0 : request->expected_tokens - std::min(produced, request->expected_tokens);
    group.forecast.Add(item);
    group.largest_standard = Larger(group.largest_standard, request->need);
  }
  group.forecast.Settle();
}

PoolBlocks RouterImpl::ReservedBlocks(Group& group) const {
  RefreshForecast(group);
  PoolBlocks most = Smaller(group.ledger->total(), group.ledger->worst_case());
  return Smaller(most, group.ledger->guaranteed() + group.forecast.Peak());
}

PoolBlocks RouterImpl::StandardLimit(const Group& group) const {
  return group.ledger->total().Percent(100 - config_.watermark_percent);
}

Hold RouterImpl::RoomHold(Group& group, const Request& request) const {
  if (Hold hold = PrefillHold(group, request.prompt_tokens); !hold.none()) return hold;
  RefreshForecast(group);
  const PoolBlocks& total = group.ledger->total();
  const PoolBlocks& guaranteed = group.ledger->guaranteed();
  PoolBlocks peak = group.forecast.Peak();
  if (request.guaranteed()) {
    PoolBlocks largest = Larger(peak, group.largest_standard);
    return WithinOr(Why::kWorstCase, guaranteed + request.need + largest, total);
  }
  PoolBlocks largest = Larger(group.largest_standard, request.need);
  Hold certain = WithinOr(Why::kWorstCase, guaranteed + largest, total);
  if (!certain.none() || group.running.empty()) return certain;  // alone it can use all there is
  ForecastItem item{request.prompt_tokens, request.expected_tokens, request.n};
  PoolBlocks peak_with = guaranteed + group.forecast.PeakWith(item);
  return WithinOr(Why::kPeak, peak_with, StandardLimit(group));
}

Hold RouterImpl::WorkHold(const Group& group) const {
  if (!group.open()) return {group.live() ? Why::kDraining : Why::kNotLive};
  bool fresh = now_ - group.last_report < config_.group_lease / 2;
  if (!fresh) {
    return {Why::kSilent, Milliseconds(now_ - group.last_report),
            Milliseconds(config_.group_lease / 2)};
  }
  if (group.breaker.Admits(now_, group.unanswered.requests)) return {};
  Time pause_over = std::max(group.breaker.closed_until(), now_);
  return {Why::kBreaker, Milliseconds(pause_over - now_ + kMillisecond - 1)};
}

Hold RouterImpl::StandingHold(const Group& group, const Request& request) const {
  if (Hold hold = WorkHold(group); !hold.none()) return hold;
  return WithinOr(Why::kTooSmall, request.need, group.ledger->total());
}

Hold RouterImpl::HoldOf(Group& group, const Request& request) const {
  Hold hold = StandingHold(group, request);
  return hold.none() ? RoomHold(group, request) : hold;
}

uint64_t RouterImpl::ChunkOf(const Group& group) const {
  // Decodes go first; a step always has some room left for prefill.
  uint64_t budget = group.ranks[0].max_batch_tokens;
  if (budget == 0) return UINT32_MAX;
  return std::max<uint64_t>(budget - std::min<uint64_t>(budget, group.running.size()),
                            budget / 4 + 1);
}

Duration RouterImpl::PrefillTime(const Group& group, uint64_t tokens) const {
  return group.steps.Prefill(now_, tokens, ChunkOf(group));
}

uint64_t RouterImpl::FirstPrefill(const StepReport& report) {
  return report.prefill_tokens - std::min(report.recomputed_tokens, report.prefill_tokens);
}

uint64_t RouterImpl::PrefillBacklog(const Group& group) const {
  return group.unanswered.Left(FirstPrefill(group.report));
}

Hold RouterImpl::PrefillHold(const Group& group, uint32_t prompt_tokens) const {
  // Enough for the step under way and, mostly, the one that is planned before more can arrive. What
  // waits, waits here, where it can still be ordered and dropped: a backlog of two steps keeps the
  // group busier by less than it costs in late first tokens, one of one step leaves it idle.
  uint64_t chunk = ChunkOf(group);
  uint64_t backlog = PrefillBacklog(group);
  if (backlog <= chunk + chunk / 2) return {};
  bool overtakes = prompt_tokens <= group.unanswered.short_prompt &&
                   group.unanswered.short_tokens + prompt_tokens <= chunk;
  return overtakes ? Hold() : Hold{Why::kPrefill, backlog, chunk + chunk / 2};
}

GroupLoad RouterImpl::LoadOf(const Group& group) const {
  GroupLoad load;
  load.takes_work = group.open();
  if (!load.takes_work) return load;
  load.busy = !group.running.empty();
  load.share = Saturated((group.ledger->worst_case().tokens_pool() << 20) /
                         group.ledger->total().tokens_pool());
  load.chunk = Saturated(ChunkOf(group));
  load.backlog = Saturated(PrefillBacklog(group));
  load.speed = group.steps.speed();
  load.rows = Saturated(group.running.size());
  load.slowness = Saturated(group.slowness);
  return load;
}

void RouterImpl::NoteLoad(const Group& group) { groups_.NoteLoad(group, LoadOf(group)); }

Group* RouterImpl::GroupFor(const Request& request, uint64_t most) {
  Group* best = BestGroup(request, most);
  if (best == nullptr || best->running.empty()) return best;
  if (now_ + groups_.load(best->index).FirstTokenTime(now_, request.prompt_tokens) <=
      request.ttft_deadline) {
    return best;
  }
  Group* idle = IdleInTime(request, most);
  return idle == nullptr ? best : idle;
}

Group* RouterImpl::IdleInTime(const Request& request, uint64_t most) {
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupLoad& load = groups_.load(i);
    if (!load.takes_work || load.busy) continue;
    if (now_ + IdlePrefill(load, request) > request.ttft_deadline) continue;
    Group& group = groups_.at(i);
    if (MayGoTo(group, request, most) && RoomHold(group, request).none()) return &group;
  }
  return nullptr;
}

bool RouterImpl::MayGoTo(const Group& group, const Request& request, uint64_t most) const {
  return StandingHold(group, request).none() && group.ledger->total().tokens_pool() <= most;
}

Group* RouterImpl::BestGroup(const Request& request, uint64_t most) {
  tried_.clear();
  for (int attempt = 0; attempt < kGroupsTried; ++attempt) {
    // The last try is the emptiest: those that look best may all be full while others are idle.
    Group* best = BestOfUntried(request, most, /*emptiest=*/attempt + 1 == kGroupsTried);
    if (best == nullptr) return nullptr;
    Hold hold = RoomHold(*best, request);
    if (hold.none()) return best;
    if (hold.why == Why::kPrefill) best->prefill_full = true;
    tried_.push_back(best->index);
  }
  return nullptr;
}

uint32_t RouterImpl::LeastSlowness() const {
  uint32_t least = DecodeCost::kLikeOthers;
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupLoad& load = groups_.load(i);
    if (load.takes_work && load.speed.known(now_)) least = std::min(least, load.slowness);
  }
  return least;
}

inline Duration RouterImpl::DecodeTime(const GroupLoad& load, const Request& request,
                                       uint32_t slowness_of_unknown) const {
  // Steps as they will be beside what runs now: the mean of those that were tells as much of what
  // ran beside, long after that ended.
  Duration others = decode_cost_.Step((uint64_t{load.rows} + request.n) * StepSpeed::kRowParts);
  uint64_t slowness = load.speed.known(now_) ? load.slowness : slowness_of_unknown;
  uint64_t decode = static_cast<uint64_t>(others) * request.expected_tokens;
  constexpr uint64_t kMost = static_cast<uint64_t>(kTimeMax) / 4;
  auto time = static_cast<unsigned __int128>(decode) * slowness / DecodeCost::kLikeOthers;
  return static_cast<Duration>(std::min<unsigned __int128>(time, kMost));
}

Group* RouterImpl::BestOfUntried(const Request& request, uint64_t most, bool emptiest) {
  // Predicted finish; of those that finish at about the same time the smallest share of its blocks
  // promised, then order.
  // A group of which nothing is known may be the quickest, and is known once it has run something.
  const uint32_t unknown = emptiest ? 0 : LeastSlowness();
  constexpr Duration kNever = kTimeMax;
  Duration latest = kNever - 1;
  finishes_.assign(groups_.size(), kNever);
  for (size_t i = 0; i < groups_.size(); ++i) {
    const GroupLoad& load = groups_.load(i);
    if (!load.takes_work || std::ranges::count(tried_, i) != 0) continue;
    finishes_[i] = emptiest ? 0 : DecodeTime(load, request, unknown);
    if (finishes_[i] > latest) continue;
    if (!emptiest) finishes_[i] += load.FirstTokenTime(now_, request.prompt_tokens);
    Duration finish = finishes_[i] + finishes_[i] / kAlikeFinish;
    if (finish < latest && MayGoTo(groups_.at(i), request, most)) latest = finish;
  }
  Group* best = nullptr;
  uint32_t share = 0;
  for (size_t i = 0; i < groups_.size(); ++i) {
    if (finishes_[i] > latest) continue;
    const GroupLoad& load = groups_.load(i);
    if (best != nullptr && load.share >= share) continue;
    Group& group = groups_.at(i);
    if (!MayGoTo(group, request, most)) continue;
    best = &group;
    share = load.share;
  }
  return best;
}

}  // namespace kvern::router
