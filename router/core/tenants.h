// Who asks: the tenants, what they may use, what they have been served, how long their outputs are.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/time.h"
#include "router/core/length_model.h"
#include "router/core/release_curve.h"
#include "router/core/router.h"

namespace kvern::router {

struct Request;

// Priorities 0 to 7: a band is served before all lower ones.
inline constexpr size_t kBands = 8;

// One tenant's requests of one band that wait, in order of arrival.
struct Line {
  Request* first = nullptr;
  Request* last = nullptr;
  uint32_t entries = 0;
  uint64_t blocks = 0;         // expected, of its requests together
  uint64_t worst_blocks = 0;   // likewise, at worst
  uint64_t prompt_tokens = 0;  // likewise
  // Requests that are being tokenised: they have their room and no place yet.
  Request* newest_text = nullptr;
  uint32_t texts = 0;
  uint32_t held() const { return entries + texts; }  // entries of the queue
  // Virtual token counter (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024):
  // what it was served, divided by its weight. The tenant with the least is next.
  uint64_t service = 0;
};

struct Tenant {
  explicit Tenant(TenantConfig what, uint32_t place = 0)
      : config(std::move(what)), number(place) {}

  TenantConfig config;
  uint32_t number;  // in the table
  LengthModel lengths;
  std::array<Line, kBands> lines;
  uint32_t waiting = 0;         // over all lines
  uint32_t texts = 0;           // likewise
  uint64_t running_blocks = 0;  // worst cases of what runs
  // When they come free, as of the last snapshot of what runs and with what was sent since; only of
  // a tenant with max_blocks.
  ReleaseCurve releases;
  // For reports, as are the next three: tokens of input and twice those of output.
  uint64_t service = 0;
  uint64_t accepted = 0;
  uint64_t completed = 0;
  std::array<uint64_t, size_t{kLastErrorCode} + 1> errors = {};
  // What is left of its block-milliseconds; negative: it used more than it had.
  int64_t block_ms_left = 0;
  Time refilled_at = 0;
};

// Tenants are told apart by name. Names that are not configured come from clients: beyond
// kMaxTenants of them, the further ones share one entry.
class TenantTable {
 public:
  static constexpr size_t kMaxTenants = 1024;

  explicit TenantTable(const std::vector<TenantConfig>& configured);

  Tenant& Of(std::string_view name);
  size_t size() const { return tenants_.size(); }
  Tenant& at(size_t index) { return *tenants_[index]; }
  const Tenant& at(size_t index) const { return *tenants_[index]; }
  // Of the configured ones in their order, then of all others together as "". As clients make their
  // names up, there is no bound worth showing on the others.
  std::vector<TenantStatus> Status() const;

 private:
  Tenant& Add(TenantConfig config);

  std::vector<std::unique_ptr<Tenant>> tenants_;
  size_t configured_ = 0;
};

// An output token costs about twice an input token (Sheng et al., OSDI 2024).
inline constexpr uint64_t kOutputWeight = 2;

// What `tokens` served tokens of weight 1 add to a line's counter.
uint64_t ServiceOf(const Tenant& tenant, uint64_t tokens);
// The reverse, for weight 1.
uint64_t ServedTokens(uint64_t service);
// Charges `tokens` served tokens of weight 1 to the line's counter.
void Charge(Tenant& tenant, size_t band, uint64_t tokens);

// KV-block-seconds: a bucket that fills at config.block_seconds_per_minute, holds a minute's worth
// and may be overdrawn by what already runs.
void RefillQuota(Tenant& tenant, Time now);
void UseQuota(Tenant& tenant, uint64_t blocks, Duration held, Time now);
// Until it is above zero again; 0: it is.
Duration QuotaDebt(const Tenant& tenant);

}  // namespace kvern::router
