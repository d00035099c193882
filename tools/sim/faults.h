// What can go wrong, by name, and how often it does.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "cluster/base/status.h"

namespace kvern::sim {

// The names are those of kFaultNames, in this order.
enum class Fault : uint8_t {
  // ---- groups; at random times
  kGroupKilled,      // all processes die; the launcher says so and restarts them
  kGroupKilledMute,  // likewise, and nobody says so
  kGroupLoop,        // dies again soon after each of three restarts
  kRackKilled,       // all groups at once
  kGroupFrozen,      // stopped for less than its lease
  kGroupFrozenLong,  // for longer, and then it goes on as if nothing had been
  kGroupSlow,        // steps take ten times as long for a while
  kGroupSmaller,     // comes back with fewer blocks
  kRankLate,         // comes back, one rank long after the others
  kRankMissing,      // comes back without one rank, and is started once more
  kRankDiffers,      // comes back with a rank of another build, and is started once more
  kRankOutlives,     // comes back, and a rank of the life before joins after all
  kReportLies,       // a report that breaks the protocol
  kReportRepeated,   // a report arrives twice
  kDispatchRefused,  // the worker refuses a few of what it is sent
  kGroupLeaves,      // a rank or all are told to end: it is drained, and comes back
  // ---- connections; at random times
  kGroupReset,        // broken and made anew: what was under way is lost
  kGroupPartitioned,  // nothing arrives for a while, in both directions
  kGroupDeaf,         // nothing arrives at the group
  kGroupMute,         // nothing arrives from the group
  kGroupLinkSlow,     // messages take fifty times as long for a while
  kClientReset,
  kClientPartitioned,
  kClientLinkSlow,
  // ---- clients; at random times
  kClientDies,
  kClientFrozen,      // silent beyond its lease, then it reads and goes on
  kClientRestarts,    // says Hello as another process, over the same connection
  kClientSlowReader,  // reads slower than it is written to
  // ---- requests; so many of a hundred
  kCancel,
  kNeverFits,   // asks for more than any group has
  kFanOut,      // n > 1
  kBadRequest,  // a field out of its range
  kShortTtftDeadline,
  kShortDeadline,
  kForeignCancel,  // cancels what is another client's
  kRepeatedId,     // the same request is sent twice
  // ---- tokenising; so many of a hundred
  kTokenizerSlow,
  kTextIllFormed,
  // ---- readers, of the clients that give credit; so many of a hundred requests
  kReaderSlow,    // takes a token at a time
  kReaderStalls,  // takes nothing for a while, perhaps for too long
  // ---- what they say was taken; so many of a hundred messages
  kCreditLost,
  kCreditLate,  // later ones overtake it
  kCreditLies,  // more than was sent
  // ---- requests again, at the end so that those before keep their draws; so many of a hundred
  kBadIds,  // an id beyond the vocabulary, in a prompt so long that the group finds it, or shorter
};
inline constexpr size_t kNumFaults = static_cast<size_t>(Fault::kBadIds) + 1;
inline constexpr Fault kFirstRequestFault = Fault::kCancel;

extern const std::array<const char*, kNumFaults> kFaultNames;

// How often: for what happens at random times, expected times in a run; else percent.
class FaultLevels {
 public:
  uint32_t& operator[](Fault fault) { return levels_[static_cast<size_t>(fault)]; }
  uint32_t operator[](Fault fault) const { return levels_[static_cast<size_t>(fault)]; }
  bool AnyOf(std::initializer_list<Fault> faults) const;

 private:
  std::array<uint32_t, kNumFaults> levels_ = {};
};

// "none", "all", or names separated by commas, at levels that suit a run of `minutes`.
// InvalidArgument names the name that does not exist.
absl::StatusOr<FaultLevels> ParseFaults(std::string_view text, double minutes);
// "cancel=5,group-killed=2"; "none".
std::string ToString(const FaultLevels& levels);
// As ParseFaults takes them: "cancel,group-killed"; "none".
std::string NamesOf(const FaultLevels& levels);

// How often each happened.
class FaultCounts {
 public:
  void Add(Fault fault) { ++counts_[static_cast<size_t>(fault)]; }
  uint64_t operator[](Fault fault) const { return counts_[static_cast<size_t>(fault)]; }

 private:
  std::array<uint64_t, kNumFaults> counts_ = {};
};

}  // namespace kvern::sim
