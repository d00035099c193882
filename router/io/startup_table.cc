#include "router/io/startup_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/base/log.h"
#include "cluster/base/options.h"
#include "cluster/base/stderr_writer.h"

namespace kvern {
namespace {

std::string Startup(const Join& rank) {
  double total = 0;
  std::vector<std::string> phases;
  for (const StartupPhase& phase : rank.startup) {
    total += phase.seconds;
    phases.push_back(absl::StrFormat("%s %.2f", phase.name, phase.seconds));
  }
  return absl::StrFormat("%.2f s (%s)", total, absl::StrJoin(phases, ", "));
}

// How many requests of a length fit at once.
struct Fit {
  uint64_t requests;
  uint32_t tokens;
};

std::vector<Fit> FitsAtOnce(const GroupStatus& group, uint32_t max_seq_len) {
  std::vector<Fit> fits;
  for (uint32_t tokens :
       std::set<uint32_t>{std::min(512u, max_seq_len), std::min(2048u, max_seq_len), max_seq_len}) {
    uint64_t need = std::max<uint64_t>(1, (uint64_t{tokens} + kBlockSize - 1) / kBlockSize);
    fits.push_back({group.total_blocks / need, tokens});
  }
  return fits;
}

using Json = nlohmann::ordered_json;

// The ranks' names come from peers.
std::string Dump(const Json& json) {
  return json.dump(-1, ' ', true, Json::error_handler_t::replace);
}

std::string RanksJson(const GroupStatus& group) {
  Json ranks = Json::array();
  for (const Join& rank : group.ranks) {
    Json startup = Json::object();
    for (const StartupPhase& phase : rank.startup) startup[phase.name + "_s"] = phase.seconds;
    ranks.push_back({{"rank", rank.rank},
                     {"device", rank.device},
                     {"weights_bytes", rank.weights_bytes},
                     {"workspace_bytes", rank.workspace_bytes},
                     {"bytes_per_token", rank.bytes_per_token},
                     {"kv_blocks", rank.kv_blocks},
                     {"startup", std::move(startup)}});
  }
  return Dump(ranks);
}

std::string FitsJson(const GroupStatus& group, uint32_t max_seq_len) {
  Json fits = Json::array();
  for (const Fit& fit : FitsAtOnce(group, max_seq_len)) {
    fits.push_back({{"requests", fit.requests}, {"tokens", fit.tokens}});
  }
  return Dump(fits);
}

}  // namespace

std::string StartupTable(const GroupStatus& group, uint32_t max_seq_len) {
  std::string table = absl::StrFormat(
      "group %s: %d ranks, %u KV blocks of %u tokens = %u tokens\n"
      "  rank  device             weights   workspace  KV/token      KV blocks  start\n",
      group.name, group.ranks.size(), group.total_blocks, kBlockSize,
      group.total_blocks * kBlockSize);
  for (const Join& rank : group.ranks) {
    absl::StrAppendFormat(&table, "  %4u  %-13s %12s %11s %9s %14u  %s\n", rank.rank, rank.device,
                          FormatSize(rank.weights_bytes), FormatSize(rank.workspace_bytes),
                          FormatSize(rank.bytes_per_token), rank.kv_blocks, Startup(rank));
  }
  std::vector<std::string> fits;
  for (const Fit& fit : FitsAtOnce(group, max_seq_len)) {
    fits.push_back(absl::StrFormat("%u of %u tokens", fit.requests, fit.tokens));
  }
  absl::StrAppend(&table, "  requests that fit at once: ", absl::StrJoin(fits, ", "), "\n");
  return table;
}

void ShowStartupTable(const GroupStatus& group, uint32_t max_seq_len) {
  if (CurrentLogFormat() == LogFormat::kText) {
    return WriteToStderr(StartupTable(group, max_seq_len));
  }
  Log(LogLevel::kInfo, "startup_table",
      {{"group", group.name},
       {"total_blocks", group.total_blocks},
       {"block_size", kBlockSize},
       LogField::Json("ranks", RanksJson(group)),
       LogField::Json("fit_at_once", FitsJson(group, max_seq_len))});
}

}  // namespace kvern
