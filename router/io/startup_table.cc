#include "router/io/startup_table.h"

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace kvern {
namespace {

std::string Size(uint64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%u B", bytes)
                   : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string Startup(const Join& rank) {
  double total = 0;
  std::vector<std::string> phases;
  for (const StartupPhase& phase : rank.startup) {
    total += phase.seconds;
    phases.push_back(absl::StrFormat("%s %.2f", phase.name, phase.seconds));
  }
  return absl::StrFormat("%.2f s (%s)", total, absl::StrJoin(phases, ", "));
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
                          Size(rank.weights_bytes), Size(rank.workspace_bytes),
                          Size(rank.bytes_per_token), rank.kv_blocks, Startup(rank));
  }
  std::set<uint32_t> lengths = {std::min(512u, max_seq_len), std::min(2048u, max_seq_len),
                                max_seq_len};
  std::vector<std::string> fits;
  for (uint32_t tokens : lengths) {
    uint64_t need = std::max<uint64_t>(1, (uint64_t{tokens} + kBlockSize - 1) / kBlockSize);
    fits.push_back(absl::StrFormat("%u of %u tokens", group.total_blocks / need, tokens));
  }
  absl::StrAppend(&table, "  requests that fit at once: ", absl::StrJoin(fits, ", "), "\n");
  return table;
}

}  // namespace kvern
