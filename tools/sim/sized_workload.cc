#include "tools/sim/sized_workload.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cluster/base/check.h"

namespace kvern::sim {
namespace {

constexpr double kPi = 3.14159265358979323846;
// Of drawn lengths: medians and spreads near those of published conversation traces.
constexpr double kPromptMedian = 500;
constexpr double kOutputMedian = 220;
constexpr double kSigma = 0.8;
constexpr uint32_t kMaxDrawn = 8192;

constexpr double kBurstSeconds = 5;
constexpr double kPauseSeconds = 10;
constexpr double kFlashFactor = 10;

}  // namespace

std::string TenantName(const SizedOptions& options, uint32_t tenant) {
  return options.tenant_names.empty() ? absl::StrCat("t", tenant) : options.tenant_names[tenant];
}

SizedWorkload::SizedWorkload(const SizedOptions& options, const FakeModel& model, uint64_t seed)
    : options_(options),
      model_(model),
      arrivals_rng_(Rng(seed).Fork(10)),
      sizes_rng_(Rng(seed).Fork(11)),
      declared_rng_(Rng(seed).Fork(12)),
      tenants_rng_(Rng(seed).Fork(13)) {
  KVERN_CHECK(options.rate > 0 && !options.shares.empty() && !options.declared.empty());
  for (uint32_t tenant = 0; tenant < options.shares.size(); ++tenant) {
    tenants_.push_back(TenantName(options, tenant));
    clients_.insert(clients_.end(), options.clients_per_tenant, tenant);
  }
  if (options.arrivals != Arrivals::kTrace) return;
  const std::vector<TraceRow>& rows = *options.trace;
  double gaps = static_cast<double>(std::max<size_t>(rows.size(), 2) - 1);
  double mean = std::max(static_cast<double>(rows.back().at) / gaps, 1.0);
  trace_scale_ = 1e9 / options.rate / mean;
  trace_length_ =
      static_cast<Duration>((static_cast<double>(rows.back().at) + mean) * trace_scale_);
}

Duration SizedWorkload::Exponential(double mean_seconds) {
  double seconds = -std::log(UnitInterval(arrivals_rng_.Next())) * mean_seconds;
  return static_cast<Duration>(seconds * 1e9);
}

Time SizedWorkload::NextBurstTime() {
  Time at = now_ + Exponential(kBurstSeconds / (kBurstSeconds + kPauseSeconds) / options_.rate);
  while (at > burst_ends_) {
    Time starts = burst_ends_ + Exponential(kPauseSeconds);
    at += starts - burst_ends_;
    burst_ends_ = starts + Exponential(kBurstSeconds);
  }
  return at;
}

Time SizedWorkload::NextTime() {
  switch (options_.arrivals) {
    case Arrivals::kPoisson:
      return now_ + Exponential(1 / options_.rate);
    case Arrivals::kBursts:
      return NextBurstTime();
    case Arrivals::kFlash: {
      bool flash =
          now_ >= options_.duration / 3 && now_ < options_.duration / 3 + options_.duration / 10;
      return now_ + Exponential(1 / options_.rate / (flash ? kFlashFactor : 1));
    }
    case Arrivals::kTrace: {
      uint64_t rows = options_.trace->size();
      double at = static_cast<double>((*options_.trace)[serial_ % rows].at) * trace_scale_;
      return static_cast<Time>(at) + static_cast<Time>(serial_ / rows) * trace_length_;
    }
  }
  return kTimeMax;
}

uint32_t SizedWorkload::LogNormal(double median, double sigma, uint32_t max) {
  // Box and Muller, 1958: of two uniform numbers one normal one.
  double u = UnitInterval(sizes_rng_.Next());
  double v = UnitInterval(sizes_rng_.Next());
  double normal = std::sqrt(-2 * std::log(u)) * std::cos(2 * kPi * v);
  double value = median * std::exp(sigma * normal);
  return static_cast<uint32_t>(std::clamp(value, 1.0, static_cast<double>(max)));
}

SizedWorkload::Size SizedWorkload::NextSize() {
  if (options_.arrivals == Arrivals::kTrace) {
    const TraceRow& row = (*options_.trace)[serial_ % options_.trace->size()];
    return {row.prompt_tokens, row.output_tokens, &row.prefix};
  }
  uint32_t prompt = LogNormal(kPromptMedian, kSigma, kMaxDrawn);
  return {prompt, LogNormal(kOutputMedian, kSigma, kMaxDrawn), nullptr};
}

uint32_t SizedWorkload::DrawDeclared() {
  auto left = static_cast<uint32_t>(declared_rng_.Below(1000));
  for (const Declared& declared : options_.declared) {
    if (left < declared.per_mille) return declared.max_tokens;
    left -= declared.per_mille;
  }
  return options_.declared.back().max_tokens;
}

uint32_t SizedWorkload::DrawTenant() {
  uint64_t sum = 0;
  for (uint32_t share : options_.shares) sum += share;
  uint64_t left = tenants_rng_.Below(sum);
  uint32_t tenant = 0;
  while (left >= options_.shares[tenant]) left -= options_.shares[tenant++];
  return tenant;
}

std::vector<uint32_t> SizedWorkload::MakePrompt(const Size& size) const {
  auto token = [this](uint64_t key) {
    auto id = static_cast<uint32_t>(Mix64(key) % (model_.vocab - 1));
    return id < model_.eos ? id : id + 1;
  };
  std::vector<uint32_t> prompt(size.prompt_tokens, token(serial_));
  if (size.prefix == nullptr) return prompt;
  for (size_t i = 0; i < size.prefix->size(); ++i) {
    size_t begin = i * kPrefixTokens;
    if (begin >= prompt.size()) break;
    size_t end = std::min(begin + kPrefixTokens, prompt.size());
    std::fill(prompt.begin() + static_cast<ptrdiff_t>(begin),
              prompt.begin() + static_cast<ptrdiff_t>(end), token(~uint64_t{(*size.prefix)[i]}));
  }
  return prompt;
}

std::optional<Ask> SizedWorkload::Next() {
  Ask ask = NextOfAll();
  while (options_.only_tenant && clients_[ask.client] != *options_.only_tenant) ask = NextOfAll();
  return ask;
}

Ask SizedWorkload::NextOfAll() {
  Ask ask;
  ask.at = now_ = NextTime();
  Size size = NextSize();
  uint32_t declared = DrawDeclared();
  uint32_t output = std::min(size.output_tokens, declared);
  uint32_t tenant = DrawTenant();
  ask.client = tenant * options_.clients_per_tenant +
               static_cast<uint32_t>(tenants_rng_.Below(options_.clients_per_tenant));
  ask.request.prompt_token_ids = MakePrompt(size);
  ask.request.max_tokens = options_.declare_true_length ? output : declared;
  ask.request.seed = SeedWithLength(++serial_, output);
  ask.request.service_class = options_.service_class;
  ask.request.ttft_deadline_ms = options_.ttft_deadline_ms;
  return ask;
}

}  // namespace kvern::sim
