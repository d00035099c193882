#include "tools/sim/command_line.h"

namespace kvern::sim {
namespace {

constexpr double kMaxLoad = 1000;
constexpr double kMaxRate = 1'000'000;
constexpr TimeRange kSloRange{kMillisecond, 3600 * kSecond};

}  // namespace

void AddOptions(Options& options, RunConfig& config) {
  auto number = [&](const char* name, const char* value, const char* help, double* target,
                    double min, double max) {
    options.Custom(name, value, help, [=](std::string_view text) -> absl::Status {
      KVERN_ASSIGN_OR_RETURN(*target, ParseNumber(text, min, max));
      return absl::OkStatus();
    });
  };
  options.Count("seed", "N", "everything follows from it", &config.seed, 0, INT64_MAX);
  options.Count("groups", "N", "groups of ranks", &config.groups, 1, 4096);
  options.Count("tp", "N", "ranks of a group, as one GPU of N times the speed", &config.tp, 1, 64);
  options.Count("kv-tokens", "N", "KV memory of a group", &config.kv_tokens, 16, 1 << 30);
  options.Choice("policy",
                 {"kvern", "reserve-max", "optimistic", "optimistic-engine", "optimistic-memory",
                  "clairvoyant", "fifo", "least-requests"},
                 "who is admitted", &config.policy);
  options.String("workload", "NAME", "poisson, bursts, flash or trace:PATH", &config.workload);
  number("load", "X", "offered load, as a multiple of the capacity found first", &config.load,
         0.001, kMaxLoad);
  number("rate", "R", "or: offered requests per second", &config.rate, 0.001, kMaxRate);
  number("duration", "SECONDS", "simulated, measured from 30 s on (default 180)", &config.duration,
         1, 1'000'000);
  options.Custom("max-tokens", "N:SHARE,...", "what clients declare (default 4096:0.7,1024:0.3)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(config.declared, ParseDeclared(text));
                   return absl::OkStatus();
                 });
  options.String("tenants", "FILE", "JSON: weights, quotas and priorities of tenants",
                 &config.tenants_file);
  options.Custom("shares", "N,N,...", "tenants' shares of the requests (default one tenant)",
                 [&](std::string_view text) -> absl::Status {
                   KVERN_ASSIGN_OR_RETURN(config.shares, ParseShares(text));
                   return absl::OkStatus();
                 });
  options.String("only-tenant", "NAME", "of all these requests, only this tenant's are made",
                 &config.only_tenant);
  options.String("faults", "LIST", "none, all, or names separated by commas", &config.faults);
  options.Time("slo-ttft", "a good request's first token (default 2s)", &config.slo.ttft,
               kSloRange);
  options.Time("slo-tpot", "and each further one (default 60ms)", &config.slo.tpot, kSloRange);
  options.Count("batch-tokens", "N", "of one step", &config.batch_tokens, 1, 65'536);
  options.Count("queue-entries", "N", "requests that may wait", &config.queue_entries, 1, 1 << 24);
  options.Count("watermark", "PERCENT", "of the blocks, kept free", &config.watermark_percent, 0,
                99);
  options.Count("quantile", "PERCENT",
                "of output lengths that kvern counts on, and the queues of optimistic-...",
                &config.quantile_percent, 0, 100);
  options.Count("max-running", "N", "requests of a group, for optimistic-... (0, the default: any)",
                &config.max_running, 0, INT64_MAX);
  options.Count("max-requests", "N", "the load ends after so many", &config.max_requests, 1,
                INT64_MAX);
  options.Flag("check-repeat", "runs twice and compares the event hashes", &config.check_repeat);
  options.Flag("json", "results as JSON", &config.json);
}

}  // namespace kvern::sim
