#include "tools/sim/results.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace kvern::sim {
namespace {

double Seconds(Duration duration) { return static_cast<double>(duration) / 1e9; }
double Milliseconds(Duration duration) { return static_cast<double>(duration) / 1e6; }

// The nearest-rank percentile; 0 of nothing. Reorders the values.
double Percentile(std::vector<double>& values, uint64_t percent) {
  if (values.empty()) return 0;
  size_t rank = (values.size() * percent + 99) / 100;
  auto at = values.begin() + static_cast<ptrdiff_t>(std::max<size_t>(rank, 1) - 1);
  std::nth_element(values.begin(), at, values.end());
  return *at;
}

Percentiles PercentilesOf(std::vector<double>& values) {
  return {Percentile(values, 50), Percentile(values, 90), Percentile(values, 99)};
}

// Mean time per token after the first, of the request as a whole; 0 with fewer than two.
Duration TimePerToken(const Record& record) {
  uint32_t longest = 0;
  for (const Record::Choice& choice : record.choices) longest = std::max(longest, choice.tokens);
  return longest < 2 ? 0 : (record.last_token - record.first_token) / (longest - 1);
}

bool IsGood(const Record& record, const Slo& slo) {
  return record.first_token - record.asked <= slo.ttft && TimePerToken(record) <= slo.tpot;
}

struct Window {
  Time begin = 0;
  Time end = 0;
  bool Has(Time at) const { return at >= begin && at < end; }
  double seconds() const { return Seconds(end - begin); }
};

// Sums of one tenant, or of all.
struct Sums {
  uint64_t offered = 0;
  uint64_t good = 0;
  uint64_t completed = 0;
  uint64_t refused = 0;
  uint64_t expired = 0;
  uint64_t tokens = 0;
  std::vector<double> ttft_ms;
  std::vector<double> tpot_ms;

  void Add(const Record& record, const Window& window, const Slo& slo) {
    if (window.Has(record.asked)) ++offered;
    if (!record.over || !window.Has(record.ended)) return;
    if (record.error == ErrorCode::kDeadlineExceeded) ++expired;
    if (record.error != ErrorCode::kNone) {
      if (record.error != ErrorCode::kDeadlineExceeded) ++refused;
      return;
    }
    ++completed;
    tokens += record.prompt_tokens + record.tokens;
    if (IsGood(record, slo)) ++good;
    ttft_ms.push_back(Milliseconds(record.first_token - record.asked));
    if (record.tokens > 1) tpot_ms.push_back(Milliseconds(TimePerToken(record)));
  }
};

void AddKv(const Simulation& simulation, const Window& window, Results& results) {
  uint64_t used = 0, reserved = 0, total = 0;
  for (const KvSample& sample : simulation.kv_samples()) {
    if (!window.Has(sample.at)) continue;
    used += sample.used_blocks;
    reserved += sample.reserved_blocks;
    total += sample.total_blocks;
  }
  results.kv_samples = simulation.kv_samples();
  results.duration = simulation.options().duration;
  if (total == 0) return;
  results.kv_used_mean = static_cast<double>(used) / static_cast<double>(total);
  results.kv_reserved_mean = static_cast<double>(reserved) / static_cast<double>(total);
}

Spread SpreadOf(const std::vector<double>& values) {
  if (values.empty()) return {};
  auto [least, most] = std::ranges::minmax(values);
  double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {least, sum / static_cast<double>(values.size()), most};
}

void AddGroups(const Simulation& simulation, Results& results) {
  std::vector<double> used;
  std::vector<double> running;
  for (const auto& [name, use] : simulation.group_use()) {
    used.push_back(static_cast<double>(use.used_blocks) / static_cast<double>(use.total_blocks));
    running.push_back(static_cast<double>(use.running) / static_cast<double>(use.samples));
  }
  results.groups = used.size();
  results.group_kv_used = SpreadOf(used);
  results.group_running = SpreadOf(running);
}

// " 0 12 88 ...": means over the tenths of the run with load; "-" where there was no sample.
std::string KvOverTime(const Results& results) {
  constexpr int kParts = 10;
  std::string text;
  for (int part = 0; part < kParts; ++part) {
    Window window{results.duration * part / kParts, results.duration * (part + 1) / kParts};
    uint64_t used = 0, total = 0;
    for (const KvSample& sample : results.kv_samples) {
      if (!window.Has(sample.at)) continue;
      used += sample.used_blocks;
      total += sample.total_blocks;
    }
    absl::StrAppend(&text, " ", total == 0 ? "-" : absl::StrCat(100 * used / total));
  }
  return text;
}

// What was asked and what came of it, against what there is if that was measured.
std::string LoadText(const Results& r) {
  bool measured = r.capacity_rps > 0;
  auto times = [&](double rps) {
    return measured ? absl::StrFormat(" (%.2f x capacity)", rps / r.capacity_rps) : "";
  };
  std::string text =
      absl::StrFormat("offered %.2f requests/s%s\n", r.offered_rps, times(r.offered_rps));
  if (measured) {
    absl::StrAppendFormat(&text,
                          "capacity %.2f requests/s: completed while some always wait, without "
                          "deadlines; where more ask, more are short, and goodput may be above\n",
                          r.capacity_rps);
  } else {
    absl::StrAppend(&text, "capacity not measured (--load does, --rate does not)\n");
  }
  absl::StrAppendFormat(&text,
                        "goodput %.2f requests/s%s: completed, TTFT within %g ms, TPOT within %g "
                        "ms\ncompleted %.2f requests/s (%d)\n",
                        r.goodput_rps, times(r.goodput_rps), Milliseconds(r.slo.ttft),
                        Milliseconds(r.slo.tpot), r.completed_rps, r.completed);
  return text;
}

std::string GroupsText(const Results& r) {
  const Spread& used = r.group_kv_used;
  const Spread& running = r.group_running;
  return absl::StrFormat(
      "by group (%d), least / mean / most: KV used %.3f / %.3f / %.3f, "
      "requests running %.1f / %.1f / %.1f\n",
      r.groups, used.least, used.mean, used.most, running.least, running.mean, running.most);
}

}  // namespace

Results Collect(const Simulation& simulation, const std::vector<std::string>& tenants) {
  const SimOptions& options = simulation.options();
  Window window{options.warm_up, options.duration};
  Results results;
  Sums all;
  std::vector<Sums> by_tenant(tenants.size());
  for (size_t i = 0; i < simulation.records().size(); ++i) {
    const Record& record = simulation.records()[i];
    all.Add(record, window, options.slo);
    results.preempted_requests += record.preemptions > 0 ? 1 : 0;
    results.preemptions_max = std::max(results.preemptions_max, record.preemptions);
    by_tenant[record.tenant].Add(record, window, options.slo);
    if (record.over && record.error != ErrorCode::kNone && window.Has(record.ended) &&
        record.error != ErrorCode::kDeadlineExceeded) {
      ++results.refused[std::string(ErrorCodeName(record.error))];
    }
  }
  auto per_second = [&](uint64_t n) { return static_cast<double>(n) / window.seconds(); };
  results.offered_rps = per_second(all.offered);
  results.goodput_rps = per_second(all.good);
  results.completed_rps = per_second(all.completed);
  results.completed_tokens_ps = per_second(all.tokens);
  results.completed = all.completed;
  results.expired = all.expired;
  results.ttft_ms = PercentilesOf(all.ttft_ms);
  results.tpot_ms = PercentilesOf(all.tpot_ms);
  for (size_t i = 0; i < tenants.size(); ++i) {
    Sums& sums = by_tenant[i];
    results.per_tenant[tenants[i]] = {per_second(sums.offered),
                                      per_second(sums.good),
                                      sums.completed,
                                      sums.refused,
                                      sums.expired,
                                      sums.tokens,
                                      Percentile(sums.ttft_ms, 99)};
  }
  for (const auto& group : simulation.groups()) {
    results.preemptions += group->totals().preemptions;
    results.recomputed_tokens += group->totals().recomputed_tokens;
  }
  AddKv(simulation, window, results);
  AddGroups(simulation, results);
  results.slo = options.slo;
  results.fairness_gap_tokens = simulation.fairness().gap();
  results.fairness_bound_tokens = simulation.fairness().allowed_gap();
  results.faults = simulation.faults();
  results.violations = simulation.violations();
  results.event_hash = simulation.event_hash();
  results.events = simulation.events();
  return results;
}

std::string ToJson(const Results& r, uint64_t seed, const std::string& options) {
  auto percentiles = [](const Percentiles& p) {
    return nlohmann::ordered_json{{"p50", p.p50}, {"p90", p.p90}, {"p99", p.p99}};
  };
  nlohmann::ordered_json json;
  json["seed"] = seed;
  json["options"] = options;
  json["offered_rps"] = r.offered_rps;
  json["capacity_rps"] = r.capacity_rps;
  json["goodput_rps"] = r.goodput_rps;
  json["completed_rps"] = r.completed_rps;
  json["completed_tokens_ps"] = r.completed_tokens_ps;
  json["completed"] = r.completed;
  json["refused"] = r.refused;
  json["expired"] = r.expired;
  json["ttft_ms"] = percentiles(r.ttft_ms);
  json["tpot_ms"] = percentiles(r.tpot_ms);
  json["preemptions"] = r.preemptions;
  json["preempted_requests"] = r.preempted_requests;
  json["preemptions_max"] = r.preemptions_max;
  json["recomputed_tokens"] = r.recomputed_tokens;
  json["kv_used_mean"] = r.kv_used_mean;
  json["kv_reserved_mean"] = r.kv_reserved_mean;
  auto spread = [](const Spread& s) {
    return nlohmann::ordered_json{{"least", s.least}, {"mean", s.mean}, {"most", s.most}};
  };
  json["by_group"] = {{"groups", r.groups},
                      {"kv_used", spread(r.group_kv_used)},
                      {"running", spread(r.group_running)}};
  json["fairness_gap_tokens"] = r.fairness_gap_tokens;
  json["fairness_bound_tokens"] = r.fairness_bound_tokens;
  auto& series = json["kv_series"] = nlohmann::ordered_json::array();
  for (const KvSample& s : r.kv_samples) {
    series.push_back({{"t_s", Seconds(s.at)},
                      {"used", s.used_blocks},
                      {"reserved", s.reserved_blocks},
                      {"total", s.total_blocks},
                      {"queued", s.queue_entries}});
  }
  auto& tenants = json["per_tenant"] = nlohmann::ordered_json::object();
  for (const auto& [name, t] : r.per_tenant) {
    tenants[name] = {{"offered_rps", t.offered_rps}, {"goodput_rps", t.goodput_rps},
                     {"completed", t.completed},     {"refused", t.refused},
                     {"expired", t.expired},         {"tokens", t.tokens},
                     {"ttft_ms_p99", t.ttft_ms_p99}};
  }
  auto& faults = json["faults"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < kNumFaults; ++i) {
    if (r.faults[Fault(i)] > 0) faults[kFaultNames[i]] = r.faults[Fault(i)];
  }
  json["violations"] = r.violations;
  json["event_hash"] = absl::StrFormat("%016x", r.event_hash);
  if (r.repeat_hash) json["repeat_event_hash"] = absl::StrFormat("%016x", *r.repeat_hash);
  json["wall_s"] = r.wall_s;
  json["events"] = r.events;
  return json.dump();
}

std::string ToText(const Results& r) {
  std::string text = LoadText(r);
  absl::StrAppendFormat(
      &text,
      "TTFT ms p50 %.0f p90 %.0f p99 %.0f   TPOT ms p50 %.1f p90 %.1f p99 %.1f\n"
      "expired %d; preemptions %d, of %d requests, at most %d of one, recomputed tokens %d\n"
      "KV used %.3f, reserved %.3f of all blocks\n",
      r.ttft_ms.p50, r.ttft_ms.p90, r.ttft_ms.p99, r.tpot_ms.p50, r.tpot_ms.p90, r.tpot_ms.p99,
      r.expired, r.preemptions, r.preempted_requests, r.preemptions_max, r.recomputed_tokens,
      r.kv_used_mean, r.kv_reserved_mean);
  absl::StrAppend(&text, GroupsText(r),
                  "KV used in each tenth of the time, percent:", KvOverTime(r), "\n");
  for (const auto& [reason, count] : r.refused) {
    absl::StrAppend(&text, "refused ", reason, ": ", count, "\n");
  }
  if (r.per_tenant.size() > 1) {
    absl::StrAppend(&text, "fairness gap ", r.fairness_gap_tokens,
                    " tokens, allowed: ", r.fairness_bound_tokens, "\n");
    for (const auto& [name, t] : r.per_tenant) {
      absl::StrAppendFormat(&text, "tenant %-6s offered %.2f goodput %.2f refused %d expired %d\n",
                            name, t.offered_rps, t.goodput_rps, t.refused, t.expired);
    }
  }
  for (size_t i = 0; i < kNumFaults; ++i) {
    uint64_t count = r.faults[Fault(i)];
    if (count > 0) absl::StrAppend(&text, "fault ", kFaultNames[i], ": ", count, "\n");
  }
  for (const std::string& violation : r.violations) {
    absl::StrAppend(&text, "VIOLATION ", violation, "\n");
  }
  absl::StrAppendFormat(&text, "events %d in %.2f s, hash %016x\n", r.events, r.wall_s,
                        r.event_hash);
  if (r.repeat_hash) {
    absl::StrAppendFormat(&text, "the same run again: event hash %016x, %s\n", *r.repeat_hash,
                          *r.repeat_hash == r.event_hash ? "equal" : "NOT equal");
  }
  return text;
}

}  // namespace kvern::sim
