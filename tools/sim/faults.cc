#include "tools/sim/faults.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace kvern::sim {

const std::array<const char*, kNumFaults> kFaultNames = {
    "group-killed",
    "group-killed-mute",
    "group-loop",
    "rack-killed",
    "group-frozen",
    "group-frozen-long",
    "group-slow",
    "group-smaller",
    "rank-late",
    "rank-missing",
    "rank-differs",
    "rank-outlives",
    "report-lies",
    "report-repeated",
    "dispatch-refused",
    "group-leaves",
    "group-reset",
    "group-partitioned",
    "group-deaf",
    "group-mute",
    "group-link-slow",
    "client-reset",
    "client-partitioned",
    "client-link-slow",
    "client-dies",
    "client-frozen",
    "client-restarts",
    "client-slow-reader",
    "cancel",
    "never-fits",
    "fan-out",
    "bad-request",
    "short-ttft-deadline",
    "short-deadline",
    "foreign-cancel",
    "repeated-id",
    "tokenizer-slow",
    "text-ill-formed",
    "reader-slow",
    "reader-stalls",
    "credit-lost",
    "credit-late",
    "credit-lies",
    "bad-ids",
};

namespace {

constexpr double kTimesPerMinute = 2;
constexpr uint32_t kPercent = 3;

}  // namespace

bool FaultLevels::AnyOf(std::initializer_list<Fault> faults) const {
  return std::any_of(faults.begin(), faults.end(), [&](Fault fault) { return (*this)[fault] > 0; });
}

absl::StatusOr<FaultLevels> ParseFaults(std::string_view text, double minutes) {
  FaultLevels levels;
  if (text == "none") return levels;
  auto times = static_cast<uint32_t>(std::ceil(kTimesPerMinute * minutes));
  auto level = [&](size_t i) {
    return i < static_cast<size_t>(kFirstRequestFault) ? times : kPercent;
  };
  if (text == "all") {
    for (size_t i = 0; i < kNumFaults; ++i) levels[Fault(i)] = level(i);
    return levels;
  }
  for (absl::string_view name : absl::StrSplit(ToAbsl(text), ',')) {
    auto it = std::find(kFaultNames.begin(), kFaultNames.end(), name);
    if (it == kFaultNames.end()) {
      return InvalidArgument("'", name, "', allowed: none, all, ",
                             absl::StrJoin(kFaultNames, ", "));
    }
    auto i = static_cast<size_t>(it - kFaultNames.begin());
    levels[Fault(i)] = level(i);
  }
  return levels;
}

std::string ToString(const FaultLevels& levels) {
  std::string text;
  for (size_t i = 0; i < kNumFaults; ++i) {
    uint32_t level = levels[Fault(i)];
    if (level > 0) absl::StrAppend(&text, text.empty() ? "" : ",", kFaultNames[i], "=", level);
  }
  return text.empty() ? "none" : text;
}

std::string NamesOf(const FaultLevels& levels) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kNumFaults; ++i) {
    if (levels[Fault(i)] > 0) names.push_back(kFaultNames[i]);
  }
  return names.empty() ? "none" : absl::StrJoin(names, ",");
}

}  // namespace kvern::sim
