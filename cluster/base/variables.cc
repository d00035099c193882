#include "cluster/base/variables.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <numeric>
#include <utility>

#include "cluster/base/log.h"

namespace kvern {
namespace {

constexpr std::string_view kPrefix = "KVERN_";
// Slips of more letters than this, or than a third of a name, are no slips.
constexpr size_t kNear = 3;

// Without the prefix. tests/cluster/launch compares with each --help.
constexpr std::string_view kOfOptions[] = {
    "BATCH_INVARIANT",
    "CHAT_TEMPLATE",
    "CLIENT_BUFFER",
    "DEFAULT_MAX_TOKENS",
    "DEFAULT_TTFT_DEADLINE",
    "DEVICE",
    "EXPECT_GROUPS",
    "GPU_INDEX",
    "GROUP",
    "GROUP_INCARNATION",
    "HOST_RANKS",
    "JOIN_TIMEOUT",
    "KV_BLOCKS",
    "KV_DTYPE",
    "KV_MEMORY",
    "LISTEN",
    "LOG_FORMAT",
    "LOG_LEVEL",
    "MAX_BATCH_TOKENS",
    "MAX_SEQ_LEN",
    "MODEL",
    "MODEL_NAME",
    "QUEUE_BYTES",
    "QUEUE_ENTRIES",
    "QUEUE_SECONDS",
    "RANK",
    "READY_FD",
    "READY_FILE",
    "REPLICAS",
    "ROUTER",
    "SLOW_READER_TIMEOUT",
    "STATUS",
    "STREAM_WINDOW",
    "TENANTS",
    "THREADS",
    "TP",
    "WEIGHTS",
    "WORKER_LISTEN",
    "WORLD",
};
// For the tests and for tools/; KVERN_TEST_... as well.
constexpr std::string_view kOfTools[] = {
    "BIN_DIR",          "CCACHE",          "CUDA_HOME", "CUDA_STUB",
    "EMULATED_DEVICES", "EMULATED_MEMORY", "REWRITE",   "SIM_FRESH",
};

bool IsKnown(std::string_view name) {
  return std::ranges::find(kOfOptions, name) != std::end(kOfOptions) ||
         std::ranges::find(kOfTools, name) != std::end(kOfTools) || name.starts_with("TEST_");
}

// KVERN_SERVICE_HOST, KVERN_ROUTER_PORT_5570_TCP_ADDR and the like.
bool IsOfKubernetes(std::string_view name) {
  return name.find("SERVICE_HOST") != std::string_view::npos ||
         name.find("SERVICE_PORT") != std::string_view::npos || name.starts_with("PORT") ||
         name.find("_PORT") != std::string_view::npos;
}

// Letters to add, drop or change (Levenshtein).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, change});
    }
  }
  return row[b.size()];
}

std::string Nearest(std::string_view name) {
  std::string_view nearest;
  size_t least = std::min(kNear, name.size() / 3) + 1;
  for (std::string_view known : kOfOptions) {
    size_t distance = Distance(name, known);
    if (distance >= least) continue;
    least = distance;
    nearest = known;
  }
  return nearest.empty() ? "" : std::string(kPrefix) + std::string(nearest);
}

}  // namespace

std::vector<UnknownVariable> UnknownVariables(const std::vector<std::string>& names) {
  std::vector<UnknownVariable> unknown;
  for (const std::string& name : names) {
    std::string_view rest = name;
    if (!rest.starts_with(kPrefix)) continue;
    rest.remove_prefix(kPrefix.size());
    if (IsKnown(rest) || IsOfKubernetes(rest)) continue;
    unknown.push_back({name, Nearest(rest)});
  }
  return unknown;
}

void WarnOfUnknownVariables() {
  std::vector<std::string> names;
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    std::string_view text = *variable;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const UnknownVariable& unknown : UnknownVariables(names)) {
    std::vector<LogField> fields = {{"name", unknown.name}};
    if (!unknown.nearest.empty()) fields.push_back({"nearest", unknown.nearest});
    Log(LogLevel::kWarning, "unknown_variable_ignored", fields);
    unsetenv(unknown.name.c_str());
  }
}

}  // namespace kvern
