#include "router/core/tenants.h"

#include <algorithm>

namespace kvern::router {
namespace {

// Keeps the fractions of a token that a weight of up to 1000 leaves, and room for 2^48 tokens.
constexpr uint64_t kServiceScale = 1 << 16;

constexpr int64_t kMsPerMinute = 60'000;
constexpr int64_t kMostOverdrawn = INT64_MIN / 2;

}  // namespace

TenantTable::TenantTable(const std::vector<TenantConfig>& configured)
    : configured_(configured.size()) {
  for (const TenantConfig& config : configured) Add(config);
}

Tenant& TenantTable::Add(TenantConfig config) {
  auto number = static_cast<uint32_t>(tenants_.size());
  return *tenants_.emplace_back(std::make_unique<Tenant>(std::move(config), number));
}

Tenant& TenantTable::Of(std::string_view name) {
  for (auto& tenant : tenants_) {
    if (tenant->config.name == name) return *tenant;
  }
  if (tenants_.size() >= configured_ + kMaxTenants) return *tenants_.back();
  TenantConfig config;
  config.name = name;
  return Add(std::move(config));
}

std::vector<TenantStatus> TenantTable::Status() const {
  std::vector<TenantStatus> listed;
  TenantStatus others;
  others.errors.resize(size_t{kLastErrorCode} + 1);
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& tenant = *tenants_[i];
    // Whoever is listed as "" is one of the others: a name is shown once.
    bool shown = i < configured_ && !tenant.config.name.empty();
    TenantStatus& status = shown ? listed.emplace_back() : others;
    if (shown) status.name = tenant.config.name;
    status.accepted += tenant.accepted;
    status.completed += tenant.completed;
    status.errors.resize(tenant.errors.size());
    for (size_t code = 0; code < tenant.errors.size(); ++code) {
      status.errors[code] += tenant.errors[code];
    }
    status.service += tenant.service;
    status.waiting += tenant.waiting;
    status.running_blocks += tenant.running_blocks;
  }
  listed.push_back(std::move(others));
  return listed;
}

uint64_t ServiceOf(const Tenant& tenant, uint64_t tokens) {
  return tokens * kServiceScale / tenant.config.weight;
}

uint64_t ServedTokens(uint64_t service) { return service / kServiceScale; }

void Charge(Tenant& tenant, size_t band, uint64_t tokens) {
  tenant.lines[band].service += ServiceOf(tenant, tokens);
  tenant.service += tokens;
}

void RefillQuota(Tenant& tenant, Time now) {
  if (tenant.config.block_seconds_per_minute == 0) return;
  // Per millisecond: block_seconds_per_minute * 1000 block-ms / 60,000 ms.
  auto full = static_cast<int64_t>(tenant.config.block_seconds_per_minute * 1000);
  int64_t elapsed_ms = (now - tenant.refilled_at) / kMillisecond;
  if (tenant.refilled_at == 0) {
    tenant.block_ms_left = full;
    tenant.refilled_at = now;
    return;
  }
  tenant.refilled_at += elapsed_ms * kMillisecond;
  auto refill = static_cast<__int128>(elapsed_ms) * full / kMsPerMinute;
  tenant.block_ms_left =
      static_cast<int64_t>(std::min<__int128>(full, tenant.block_ms_left + refill));
}

void UseQuota(Tenant& tenant, uint64_t blocks, Duration held, Time now) {
  if (tenant.config.block_seconds_per_minute == 0) return;
  RefillQuota(tenant, now);
  auto left = tenant.block_ms_left - static_cast<__int128>(blocks) * (held / kMillisecond);
  tenant.block_ms_left = static_cast<int64_t>(std::max<__int128>(left, kMostOverdrawn));
}

Duration QuotaDebt(const Tenant& tenant) {
  if (tenant.config.block_seconds_per_minute == 0 || tenant.block_ms_left > 0) return 0;
  auto full = static_cast<int64_t>(tenant.config.block_seconds_per_minute * 1000);
  auto ms = static_cast<__int128>(1 - tenant.block_ms_left) * kMsPerMinute / full + 1;
  return static_cast<Duration>(std::min<__int128>(ms * kMillisecond, kTimeMax / 4));
}

}  // namespace kvern::router
