#include "tools/sim/run_config.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cluster/base/options.h"

namespace kvern::sim {
namespace {

constexpr std::string_view kTracePrefix = "trace:";
constexpr uint32_t kMaxSeqLen = 131'072;
constexpr int64_t kMaxTokens = 1'000'000;
constexpr size_t kMaxTenants = 1000;
// "No deadline", in a field that must have one.
constexpr Duration kFar = 1'000'000 * kSecond;
constexpr uint32_t kCapacityWaiting = 64;
constexpr uint64_t kCapacityRequests = 200'000;
constexpr Duration kWarmUp = 30 * kSecond;

absl::StatusOr<Arrivals> ArrivalsOf(const std::string& workload) {
  if (workload == "poisson") return Arrivals::kPoisson;
  if (workload == "bursts") return Arrivals::kBursts;
  if (workload == "flash") return Arrivals::kFlash;
  if (workload.starts_with(kTracePrefix)) return Arrivals::kTrace;
  return InvalidArgument("--workload: '", workload,
                         "', allowed: poisson, bursts, flash, trace:PATH");
}

absl::Status ApplyPolicy(const RunConfig& config, RunPlan& plan) {
  RouterConfig& router = plan.options.router;
  auto ttft_ms = static_cast<uint32_t>(config.slo.ttft / kMillisecond);
  plan.workload.service_class = ServiceClass::kStandard;
  plan.workload.ttft_deadline_ms = ttft_ms;
  router.watermark_percent = static_cast<uint32_t>(config.watermark_percent);
  router.output_quantile_percent = static_cast<uint32_t>(config.quantile_percent);
  bool step_budget = config.policy == "optimistic-engine";
  if (step_budget || config.policy == "optimistic-memory") {
    OptimisticAdmission& admission = plan.options.optimistic.emplace();
    admission.step_budget = step_budget;
    if (config.max_running > 0) admission.max_running = static_cast<uint64_t>(config.max_running);
    return absl::OkStatus();
  }
  if (config.max_running > 0) {
    return InvalidArgument("--max-running: ", config.max_running, ", not allowed with --policy ",
                           config.policy);
  }
  if (config.policy == "kvern") return absl::OkStatus();
  if (config.policy == "reserve-max") {
    plan.workload.service_class = ServiceClass::kGuaranteed;
    return absl::OkStatus();
  }
  if (config.policy == "clairvoyant") {
    // What each declares is what it will say, so the forecast is the truth and needs no margin.
    plan.workload.declare_true_length = true;
    router.output_quantile_percent = 100;
    router.watermark_percent = 0;
    return absl::OkStatus();
  }
  router.output_quantile_percent = 0;
  if (config.policy == "optimistic") return absl::OkStatus();
  bool least_requests = config.policy == "least-requests";
  if (!least_requests && config.policy != "fifo") {
    return InvalidArgument("--policy: '", config.policy,
                           "', allowed: kvern, reserve-max, optimistic, optimistic-engine, "
                           "optimistic-memory, clairvoyant, fifo, least-requests");
  }
  if (least_requests && config.faults != "none") {
    return InvalidArgument("--faults: '", config.faults, "', allowed with least-requests: none");
  }
  plan.options.least_requests = least_requests;
  plan.workload.ttft_deadline_ms.reset();
  plan.options.cancel_at_end = true;
  router.default_ttft_deadline = kFar;
  router.queue_entries = 10'000'000;
  router.queue_bytes = uint64_t{1} << 50;
  router.queue_wait_max = kFar;
  return absl::OkStatus();
}

absl::Status SetOnlyTenant(const RunConfig& config, SizedOptions& workload) {
  if (config.only_tenant.empty()) return absl::OkStatus();
  for (uint32_t tenant = 0; tenant < workload.shares.size(); ++tenant) {
    if (TenantName(workload, tenant) == config.only_tenant) workload.only_tenant = tenant;
  }
  if (!workload.only_tenant) {
    return InvalidArgument("--only-tenant: '", config.only_tenant, "' is none of the ",
                           workload.shares.size(), " tenants of --tenants or --shares");
  }
  if (workload.shares[*workload.only_tenant] == 0) {
    return InvalidArgument("--only-tenant: the share of ", config.only_tenant, " is 0");
  }
  return absl::OkStatus();
}

// The tenants of the file, or as many as there are shares, named t0, t1, ...
absl::Status SetTenants(const RunConfig& config, RunPlan& plan) {
  plan.options.router.tenants = config.tenants;
  plan.workload.shares = config.shares;
  for (const TenantConfig& tenant : config.tenants) {
    plan.workload.tenant_names.push_back(tenant.name);
  }
  size_t tenants = std::max(config.tenants.size(), size_t{1});
  if (config.shares.empty()) plan.workload.shares.assign(tenants, 1);
  if (!config.tenants.empty() && plan.workload.shares.size() != tenants) {
    return InvalidArgument("--shares: ", plan.workload.shares.size(),
                           " of them, allowed: one for each of the ", tenants,
                           " tenants of --tenants");
  }
  return SetOnlyTenant(config, plan.workload);
}

}  // namespace

absl::StatusOr<double> ParseNumber(std::string_view text, double min, double max) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= min && value <= max)) {
    return InvalidArgument("'", ToAbsl(text), "' is not a number from ", min, " to ", max);
  }
  return value;
}

absl::StatusOr<std::vector<Declared>> ParseDeclared(std::string_view text) {
  std::vector<Declared> declared;
  uint32_t sum = 0;
  for (absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    std::vector<absl::string_view> parts = absl::StrSplit(piece, ':');
    if (parts.size() != 2) {
      return InvalidArgument("'", piece, "' is not max_tokens:share, such as 4096:0.7");
    }
    auto view = [](absl::string_view v) { return std::string_view(v.data(), v.size()); };
    KVERN_ASSIGN_OR_RETURN(int64_t tokens, ParseInteger(view(parts[0]), 1, kMaxTokens));
    KVERN_ASSIGN_OR_RETURN(double share, ParseNumber(view(parts[1]), 0, 1));
    declared.push_back(
        {static_cast<uint32_t>(tokens), static_cast<uint32_t>(std::lround(share * 1000))});
    sum += declared.back().per_mille;
  }
  if (sum != 1000) return InvalidArgument("the shares add up to ", sum / 1000.0, ", allowed: 1");
  return declared;
}

absl::StatusOr<std::vector<uint32_t>> ParseShares(std::string_view text) {
  std::vector<uint32_t> shares;
  uint64_t sum = 0;
  for (absl::string_view piece : absl::StrSplit(ToAbsl(text), ',')) {
    KVERN_ASSIGN_OR_RETURN(
        int64_t share, ParseInteger(std::string_view(piece.data(), piece.size()), 0, kMaxTokens));
    shares.push_back(static_cast<uint32_t>(share));
    sum += static_cast<uint64_t>(share);
  }
  if (shares.size() > kMaxTenants) {
    return InvalidArgument(shares.size(), " tenants, allowed: 1 to ", kMaxTenants);
  }
  if (sum == 0) return InvalidArgument("all shares are 0");
  return shares;
}

std::optional<std::string> TracePath(const RunConfig& config) {
  if (!config.workload.starts_with(kTracePrefix)) return std::nullopt;
  return config.workload.substr(kTracePrefix.size());
}

absl::StatusOr<RunPlan> MakePlan(const RunConfig& config, double rate,
                                 std::shared_ptr<const std::vector<TraceRow>> trace) {
  RunPlan plan;
  SimOptions& options = plan.options;
  options.seed = static_cast<uint64_t>(config.seed);
  options.groups = static_cast<uint32_t>(config.groups);
  options.ranks = static_cast<uint32_t>(config.tp);
  options.kv_blocks = static_cast<uint64_t>(config.kv_tokens) / kBlockSize;
  options.batch_tokens = static_cast<uint32_t>(config.batch_tokens);
  options.model_cost = Llama3Of8B();
  options.device_cost = H100(options.ranks);
  options.duration = static_cast<Duration>(config.duration * 1e9);
  options.warm_up = std::min(kWarmUp, options.duration / 6);
  options.slo = config.slo;
  options.max_requests = static_cast<uint64_t>(config.max_requests);
  options.router.model = "sim";
  options.router.max_seq_len = kMaxSeqLen;
  options.router.vocab_size = options.model.vocab;
  options.router.eos_ids = {options.model.eos};
  options.router.queue_entries = static_cast<uint32_t>(config.queue_entries);
  options.router.router_incarnation = 1;
  SizedOptions& workload = plan.workload;
  KVERN_ASSIGN_OR_RETURN(workload.arrivals, ArrivalsOf(config.workload));
  workload.trace = std::move(trace);
  workload.rate = rate;
  workload.duration = options.duration;
  workload.declared = config.declared;
  KVERN_RETURN_IF_ERROR(SetTenants(config, plan));
  absl::StatusOr<FaultLevels> faults = ParseFaults(config.faults, config.duration / 60);
  if (!faults.ok()) return InvalidArgument("--faults: ", faults.status().message());
  options.faults = *faults;
  options.half_give_credit =
      faults->AnyOf({Fault::kReaderSlow, Fault::kReaderStalls, Fault::kCreditLost,
                     Fault::kCreditLate, Fault::kCreditLies});
  KVERN_RETURN_IF_ERROR(ApplyPolicy(config, plan));
  return plan;
}

absl::StatusOr<RunPlan> MakeCapacityPlan(const RunConfig& config,
                                         std::shared_ptr<const std::vector<TraceRow>> trace) {
  KVERN_ASSIGN_OR_RETURN(RunPlan plan, MakePlan(config, 1, std::move(trace)));
  plan.options.groups = 1;
  plan.options.always_waiting = kCapacityWaiting;
  // Where nothing is ever let in, new requests would come for ever.
  plan.options.max_requests = kCapacityRequests;
  plan.options.router.queue_entries =
      std::max(plan.options.router.queue_entries, 2 * kCapacityWaiting);
  plan.options.cancel_at_end = true;
  plan.options.least_requests = false;
  plan.options.optimistic.reset();
  // So that it is the same, whatever goes wrong in the run.
  plan.options.faults = FaultLevels();
  plan.options.half_give_credit = false;
  RouterConfig& router = plan.options.router;
  router.default_ttft_deadline = kFar;
  router.queue_wait_max = kFar;
  router.output_quantile_percent = 100;
  router.watermark_percent = RouterConfig().watermark_percent;
  plan.workload.service_class = ServiceClass::kStandard;
  plan.workload.ttft_deadline_ms.reset();
  plan.workload.declare_true_length = true;
  plan.workload.only_tenant.reset();
  return plan;
}

}  // namespace kvern::sim
