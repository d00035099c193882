// A workload of requests with known lengths: from a trace, or drawn; at the trace's own gaps scaled
// to a rate, or by a process.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/base/rng.h"
#include "tools/sim/options.h"
#include "tools/sim/trace.h"
#include "tools/sim/workload.h"

namespace kvern::sim {

enum class Arrivals : uint8_t {
  kPoisson,
  kBursts,  // on for 5 s at three times the rate, off for 10 s, both by chance
  kFlash,   // at ten times the rate for a tenth of the time, from a third of it on
  kTrace,   // the trace's gaps, scaled to the rate
};

struct SizedOptions {
  Arrivals arrivals = Arrivals::kPoisson;
  std::shared_ptr<const std::vector<TraceRow>> trace;  // with kTrace: in its order, repeated
  double rate = 1;                                     // requests per second, on average
  Duration duration = 180 * kSecond;                   // for kFlash
  std::vector<Declared> declared;
  // [tenants] their shares of the requests, in proportion; named t0, t1, ... unless said otherwise
  std::vector<uint32_t> shares = {1};
  std::vector<std::string> tenant_names;  // [tenants], or empty
  uint32_t clients_per_tenant = 4;
  // Of all these requests only those of this tenant are made, each as it was among the others.
  std::optional<uint32_t> only_tenant;
  // ---- what the policy makes of a request
  ServiceClass service_class = ServiceClass::kGuaranteed;
  std::optional<uint32_t> ttft_deadline_ms;
  bool declare_true_length = false;  // max_tokens is the output's length
};

std::string TenantName(const SizedOptions& options, uint32_t tenant);

class SizedWorkload : public Workload {
 public:
  // REQUIRES: rate > 0, shares and declared are not empty; a trace with kTrace.
  SizedWorkload(const SizedOptions& options, const FakeModel& model, uint64_t seed);

  const std::vector<std::string>& tenants() const override { return tenants_; }
  const std::vector<uint32_t>& clients() const override { return clients_; }
  std::optional<Ask> Next() override;

 private:
  struct Size {
    uint32_t prompt_tokens = 0;
    uint32_t output_tokens = 0;
    const std::vector<uint32_t>* prefix = nullptr;
  };
  Time NextTime();
  Time NextBurstTime();
  Duration Exponential(double mean_seconds);
  Size NextSize();
  uint32_t LogNormal(double median, double sigma, uint32_t max);
  uint32_t DrawDeclared();
  uint32_t DrawTenant();
  std::vector<uint32_t> MakePrompt(const Size& size) const;
  // The next request of any tenant.
  Ask NextOfAll();

  SizedOptions options_;
  FakeModel model_;
  Rng arrivals_rng_;
  Rng sizes_rng_;
  Rng declared_rng_;
  Rng tenants_rng_;
  std::vector<std::string> tenants_;
  std::vector<uint32_t> clients_;
  uint64_t serial_ = 0;
  Time now_ = 0;
  Time burst_ends_ = 0;
  double trace_scale_ = 1;     // of its gaps
  Duration trace_length_ = 0;  // of one round, with a mean gap behind the last row
};

}  // namespace kvern::sim
