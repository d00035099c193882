#include "router/io/metrics.h"

#include "absl/strings/str_cat.h"
#include "cluster/stats/metrics_text.h"

namespace kvern {
namespace {

double Seconds(Duration duration) { return static_cast<double>(duration) / kSecond; }

void AddGroup(MetricsText& page, const GroupStatus& group) {
  auto blocks = [&](const char* state, uint64_t count) {
    page.Gauge("kvern_kv_blocks", "KV-cache blocks of each live group.",
               {{"group", group.name}, {"state", state}}, static_cast<double>(count));
  };
  blocks("total", group.total_blocks);
  blocks("reserved", group.reserved_blocks);
  blocks("used", group.used_blocks);
  // What a group that drains gives back is nobody's to have.
  blocks("free", group.draining ? 0 : group.total_blocks - group.reserved_blocks);
}

void AddGroups(MetricsText& page, const RouterStatus& status) {
  for (const GroupStatus& group : status.groups) AddGroup(page, group);
  for (const GroupStatus& group : status.groups) {
    page.Gauge("kvern_group_live", "1 if the group takes requests.", {{"group", group.name}},
               group.live && !group.draining ? 1 : 0);
  }
  for (const GroupStatus& group : status.groups) {
    page.Gauge("kvern_group_draining", "1 if the group only finishes what it runs, then leaves.",
               {{"group", group.name}}, group.draining ? 1 : 0);
  }
  for (const GroupStatus& group : status.groups) {
    page.Gauge("kvern_kv_ledger_drift_blocks",
               "The router's ledger as of the acknowledged command minus the worker's own count.",
               {{"group", group.name}}, static_cast<double>(group.drift_blocks));
  }
  for (const GroupStatus& group : status.groups) {
    page.Gauge("kvern_worst_case_blocks",
               "Worst cases of all that runs; beyond the total when admission is by forecast.",
               {{"group", group.name}}, static_cast<double>(group.worst_case_blocks));
  }
  for (const GroupStatus& group : status.groups) {
    page.Counter("kvern_preemptions_total",
                 "Requests that lost their blocks to another and were computed again.",
                 {{"group", group.name}}, static_cast<double>(group.preemptions));
  }
  for (const GroupStatus& group : status.groups) {
    page.Counter("kvern_recomputed_tokens_total", "Tokens computed again after a preemption.",
                 {{"group", group.name}}, static_cast<double>(group.recomputed_tokens));
  }
  for (const GroupStatus& group : status.groups) {
    for (const RankAge& age : group.ages) {
      page.Gauge("kvern_step_age_seconds", "Time since each rank's last step or keep-alive.",
                 {{"group", group.name}, {"rank", absl::StrCat(age.rank)}},
                 static_cast<double>(age.step_age_ms) / 1000);
    }
  }
}

// Not those that their clients cancelled, or were cancelled for their clients' sake: they have an
// outcome of their own.
template <typename Add>  // (const char* reason, uint64_t count)
void ForEachRefusal(const std::vector<uint64_t>& errors, Add add) {
  for (size_t i = 1; i < errors.size(); ++i) {
    auto code = static_cast<ErrorCode>(i);
    if (code != ErrorCode::kCancelled) add(std::string(ErrorCodeName(code)).c_str(), errors[i]);
  }
}

void AddRequests(MetricsText& page, const RouterCounters& counters) {
  auto outcome = [&](const char* name, uint64_t count) {
    page.Counter("kvern_requests_total", "Requests by how far they came.", {{"outcome", name}},
                 static_cast<double>(count));
  };
  uint64_t errors = 0;
  ForEachRefusal(counters.errors, [&](const char*, uint64_t count) { errors += count; });
  outcome("accepted", counters.accepted);
  outcome("completed", counters.completed);
  outcome("cancelled", counters.cancelled);
  outcome("error", errors);
  ForEachRefusal(counters.errors, [&](const char* reason, uint64_t count) {
    page.Counter("kvern_refused_total",
                 "Requests that were refused, or ended with an error, by its code.",
                 {{"reason", reason}}, static_cast<double>(count));
  });
  page.Counter("kvern_stale_runs_total", "Token runs dropped for their epoch or position.", {},
               static_cast<double>(counters.stale_runs));
  page.Counter("kvern_stale_group_messages_total",
               "Words of a group's end that were of another start of it, or of a stranger.", {},
               static_cast<double>(counters.stale_group_messages));
  page.Counter("kvern_slow_readers_total", "Streams cancelled because nobody read them.", {},
               static_cast<double>(counters.slow_readers));
  page.Counter("kvern_lost_groups_total", "Groups that died or broke the protocol.", {},
               static_cast<double>(counters.lost_groups));
}

void AddTenants(MetricsText& page, const std::vector<TenantStatus>& tenants) {
  for (const TenantStatus& tenant : tenants) {
    auto outcome = [&](const char* name, uint64_t count) {
      page.Counter("kvern_tenant_requests_total",
                   "Requests by tenant; \"\" stands for all that no --tenants file lists.",
                   {{"tenant", tenant.name}, {"outcome", name}}, static_cast<double>(count));
    };
    outcome("accepted", tenant.accepted);
    outcome("completed", tenant.completed);
  }
  for (const TenantStatus& tenant : tenants) {
    ForEachRefusal(tenant.errors, [&](const char* reason, uint64_t count) {
      page.Counter("kvern_tenant_refused_total",
                   "Requests that were refused, or ended with an error, by tenant and code.",
                   {{"tenant", tenant.name}, {"reason", reason}}, static_cast<double>(count));
    });
  }
  for (const TenantStatus& tenant : tenants) {
    page.Counter("kvern_tenant_service_total",
                 "Tokens of input and twice those of output: what tenants share by weight.",
                 {{"tenant", tenant.name}}, static_cast<double>(tenant.service));
  }
  for (const TenantStatus& tenant : tenants) {
    page.Gauge("kvern_tenant_waiting", "Requests that wait.", {{"tenant", tenant.name}},
               tenant.waiting);
  }
  for (const TenantStatus& tenant : tenants) {
    page.Gauge("kvern_tenant_running_blocks", "Worst cases of what a tenant runs, in KV blocks.",
               {{"tenant", tenant.name}}, static_cast<double>(tenant.running_blocks));
  }
}

void AddBadMessages(MetricsText& page, const char* socket, const BadMessages& bad) {
  auto add = [&](std::string_view reason, uint64_t count) {
    page.Counter("kvern_bad_messages_total", "Messages refused, by socket and reason.",
                 {{"socket", socket}, {"reason", std::string(reason)}}, static_cast<double>(count));
  };
  for (size_t i = 1; i < BadMessages::kReasons; ++i) {
    add(DecodeFailureName(static_cast<DecodeFailure>(i)), bad.by_failure[i]);
  }
  add("frames", bad.frames);
}

void AddQueue(MetricsText& page, const RouterStatus& status) {
  page.Gauge("kvern_queue_entries", "Requests that wait, those being tokenised included.", {},
             static_cast<double>(status.queue_entries));
  page.Gauge("kvern_queue_bytes", "Bytes of the prompts that wait.", {},
             static_cast<double>(status.queue_bytes));
  page.Gauge("kvern_queue_age_seconds", "How long the oldest request has waited.", {},
             Seconds(status.queue_age));
  page.Gauge("kvern_paused_streams", "Streams whose readers have a full window to take.", {},
             static_cast<double>(status.paused_streams));
  page.Gauge("kvern_client_buffer_bytes", "Bytes kept for paused streams.", {},
             static_cast<double>(status.kept_bytes));
  page.Gauge("kvern_clients", "Clients that said Hello and are not known to be gone.", {},
             static_cast<double>(status.clients));
}

// vLLM's names for what means the same there.
void AddVllm(MetricsText& page, const StatusSnapshot& snapshot) {
  const MetricLabels labels = {{"model_name", snapshot.model}};
  uint64_t running = 0;
  for (const GroupStatus& group : snapshot.status.groups) running += group.running;
  page.Gauge("vllm:num_requests_running", "Requests that are executed.", labels,
             static_cast<double>(running));
  page.Gauge("vllm:num_requests_waiting", "Requests that wait to be executed.", labels,
             static_cast<double>(snapshot.status.queue_entries));
  page.Counter("vllm:prompt_tokens_total",
               "Prompt tokens processed: of requests with a first token.", labels,
               static_cast<double>(snapshot.status.counters.prompt_tokens));
  page.Counter("vllm:generation_tokens_total", "Tokens generated.", labels,
               static_cast<double>(snapshot.status.counters.generated_tokens));
  page.Distribution("vllm:time_to_first_token_seconds",
                    "From the arrival of a request to its first token.", labels,
                    snapshot.distributions.ttft);
  page.Distribution("vllm:request_queue_time_seconds", "From arrival to dispatch.", labels,
                    snapshot.distributions.queue);
}

}  // namespace

void RouterDistributions::Observe(const RouterCounters& counters) {
  for (double seconds : counters.ttft_seconds) ttft.Observe(seconds);
  for (double seconds : counters.tpot_seconds) tpot.Observe(seconds);
  for (double seconds : counters.queue_seconds) queue.Observe(seconds);
  for (double seconds : counters.cancel_to_free_seconds) cancel_to_free.Observe(seconds);
}

std::string MetricsPage(const StatusSnapshot& snapshot) {
  MetricsText page;
  AddGroups(page, snapshot.status);
  AddRequests(page, snapshot.status.counters);
  AddQueue(page, snapshot.status);
  AddTenants(page, snapshot.status.tenants);
  page.Distribution("kvern_cancel_to_free_seconds",
                    "From a cancel to the worker's word that the blocks are free.", {},
                    snapshot.distributions.cancel_to_free);
  page.Distribution("kvern_time_per_output_token_seconds",
                    "Mean time per token after the first, one value for each request.", {},
                    snapshot.distributions.tpot);
  AddBadMessages(page, "client", snapshot.client_messages);
  AddBadMessages(page, "worker", snapshot.worker_messages);
  AddVllm(page, snapshot);
  return page.Serialize();
}

}  // namespace kvern
