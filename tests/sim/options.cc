#include "tests/sim/options.h"

#include "absl/strings/str_cat.h"
#include "cluster/base/rng.h"

namespace kvern::sim {

std::string CheckThatSees(Bug bug) {
  switch (bug) {
    case Bug::kNone:
      return "";
    case Bug::kDropDelta:
    case Bug::kRepeatDelta:
    case Bug::kSwapDeltas:
    case Bug::kWrongToken:
      return "S1";
    case Bug::kRepeatError:
      return "S3";
    case Bug::kDropTerminal:
      return "L1";
    case Bug::kDropCancel:
      return "S5";
    case Bug::kLateDispatch:
      return "S7";
    case Bug::kDeltaAfterEnd:
      return "S10";
  }
  return "";
}

SimOptions DrawOptions(uint64_t seed) {
  Rng rng = Rng(seed).Fork(1);
  auto between = [&](int64_t low, int64_t high) {
    return static_cast<uint32_t>(rng.Between(low, high));
  };
  SimOptions options;
  options.seed = seed;
  options.groups = between(1, 4);
  options.ranks = between(1, 3);
  options.kv_blocks = between(6, 80);
  options.batch_tokens = between(4, 128);
  options.clients = between(1, 8);
  options.mean_gap = rng.Between(3, 60) * kMillisecond;
  options.max_prompt = between(1, 120);
  options.max_output = between(1, 80);
  options.queue_entries = between(1, 40);
  options.queue_bytes = between(600, 6000);
  options.max_delay = rng.Between(1, 40) * kMillisecond;
  if (rng.Chance(3, 4)) options.group_deaths = between(1, 6);
  if (rng.Chance(1, 2)) options.group_pauses = between(1, 4);
  if (rng.Chance(1, 3)) options.group_lies = between(1, 3);
  if (rng.Chance(1, 2)) options.client_deaths = between(1, 4);
  if (rng.Chance(1, 2)) options.client_pauses = between(1, 4);
  if (rng.Chance(3, 4)) options.cancel_percent = between(1, 50);
  options.replay_reports = rng.Chance(1, 3);
  return options;
}

std::string ToString(const SimOptions& o) {
  return absl::StrCat(
      "seed=", o.seed, " groups=", o.groups, " ranks=", o.ranks, " kv_blocks=", o.kv_blocks,
      " batch_tokens=", o.batch_tokens, " clients=", o.clients,
      " mean_gap_ms=", o.mean_gap / kMillisecond, " max_prompt=", o.max_prompt,
      " max_output=", o.max_output, " queue_entries=", o.queue_entries,
      " queue_bytes=", o.queue_bytes, " max_delay_ms=", o.max_delay / kMillisecond,
      " group_deaths=", o.group_deaths, " group_pauses=", o.group_pauses,
      " group_lies=", o.group_lies, " client_deaths=", o.client_deaths,
      " client_pauses=", o.client_pauses, " cancel_percent=", o.cancel_percent,
      " replay_reports=", o.replay_reports ? 1 : 0, " bug=", static_cast<int>(o.bug));
}

}  // namespace kvern::sim
