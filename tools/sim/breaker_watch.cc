#include "tools/sim/breaker_watch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace kvern::sim {
namespace {

// So many failures in a row, and a group gets nothing for a second, twice as long with each further
// one, a minute at most; then one request at a time until one of them gets a token.
constexpr uint32_t kThreshold = 3;
constexpr Duration kFirstPause = 1 * kSecond;
constexpr Duration kLongestPause = 60 * kSecond;

}  // namespace

bool IsFault(ErrorCode code) {
  return code != ErrorCode::kInvalidArgument && code != ErrorCode::kNeverFits;
}

BreakerWatch::BreakerWatch(size_t groups, Checker& checker, Checker::Report violation)
    : checker_(checker), violation_(std::move(violation)), groups_(groups) {}

void BreakerWatch::Failed(Time now, Group& group) {
  if (++group.failures < kThreshold) return;
  Duration pause = kFirstPause;
  for (uint32_t i = kThreshold; i < group.failures && pause < kLongestPause; ++i) pause *= 2;
  group.closed_until = now + std::min(pause, kLongestPause);
}

void BreakerWatch::FirstToken(uint32_t group, const RequestId& id) {
  groups_[group].without_token.erase(id);
  groups_[group].failures = 0;
}

void BreakerWatch::Refused(Time now, uint32_t group, const Nack& nack) {
  bool ran = groups_[group].without_token.erase(nack.request_id) > 0;
  if (ran && IsFault(nack.code)) Failed(now, groups_[group]);
}

void BreakerWatch::Hear(Time now, const RouterEffects& effects) {
  std::set<uint32_t> lost;  // groups, each with all that waited for its first token
  for (const ToClient& to : effects.to_clients) {
    const auto* error = std::get_if<RequestError>(&to.message);
    if (error == nullptr || error->details.still_open) continue;
    const Record* record = checker_.Find(error->request_id);
    if (record == nullptr) continue;
    Group& group = groups_[record->group];
    bool ended = group.without_token.erase(error->request_id) > 0;
    if (ended && error->code == ErrorCode::kUnavailable) lost.insert(record->group);
  }
  for (uint32_t index : lost) Failed(now, groups_[index]);
}

void BreakerWatch::Started(Time now, uint32_t index, const RequestId& id) {
  Group& group = groups_[index];
  // Of these the router does not say the end.
  std::erase_if(group.without_token,
                [&](const RequestId& other) { return checker_.Find(other)->client_lost; });
  std::string what;
  if (group.failures >= kThreshold && now < group.closed_until) {
    what = absl::StrCat((group.closed_until - now) / kMillisecond, " ms too early");
  } else if (group.failures >= kThreshold && !group.without_token.empty()) {
    what = "beside another one without a token";
  }
  if (!what.empty()) {
    violation_(absl::StrCat("R8: request ", id.low, ": sent to group ", index, ", which failed ",
                            group.failures, " before their first tokens, ", what));
  }
  group.without_token.insert(id);
}

}  // namespace kvern::sim
