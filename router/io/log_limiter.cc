#include "router/io/log_limiter.h"

namespace kvern {
namespace {

constexpr Duration kEvery = kSecond;

}  // namespace

std::optional<LimitedLine> LogLimiter::Add(Time now, const std::string& kind, LimitedLine line,
                                           uint32_t burst) {
  auto [entry, is_new] = kinds_.try_emplace(kind);
  Kind& known = entry->second;
  if (is_new || (known.held == 0 && now - known.since >= kEvery)) {
    known.since = now;
    known.written = 0;
  }
  if (known.held == 0 && known.written < burst) {
    ++known.written;
    return line;
  }
  ++known.held;
  known.latest = std::move(line);
  return std::nullopt;
}

std::vector<LimitedLine> LogLimiter::Due(Time now) {
  std::vector<LimitedLine> due;
  for (auto& [name, kind] : kinds_) {
    if (kind.held == 0 || now - kind.since < kEvery) continue;
    if (kind.held > 1) kind.latest.fields.emplace_back("count", absl::StrCat(kind.held));
    due.push_back(std::exchange(kind.latest, {}));
    kind.held = 0;
    kind.since = now;
    kind.written = 1;
  }
  return due;
}

}  // namespace kvern
