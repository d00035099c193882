// A bounded dose of simulation in every test run: fixed seeds, a few fresh ones, each run twice;
// and the proof that the checks see mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <optional>
#include <string>

#include "absl/strings/str_split.h"
#include "tests/sim/swarm_options.h"
#include "tests/sim/swarm_run.h"
#include "tools/sim/simulation.h"

namespace kvern::sim {
namespace {

// About two seconds of one core in a release build.
constexpr uint64_t kFixedSeeds = 60;
constexpr uint64_t kFreshSeeds = 10;
constexpr uint64_t kSeedsPerBug = 12;

struct Total {
  uint64_t completed = 0;
  uint64_t stop_strings = 0;
  uint64_t lost_groups = 0;
  uint64_t bad_ids = 0;  // requests that their group refused for an id
  FlowCounts flow;
  uint64_t errors[size_t{kLastErrorCode} + 1] = {};
  uint64_t faults[kNumFaults] = {};

  void Add(const Simulation& simulation) {
    completed += simulation.counters().completed;
    lost_groups += simulation.counters().lost_groups;
    flow.paused += simulation.flow().paused;
    flow.resumed += simulation.flow().resumed;
    flow.timed_out += simulation.flow().timed_out;
    flow.crowded += simulation.flow().crowded;
    for (size_t i = 0; i < kNumFaults; ++i) faults[i] += simulation.faults()[Fault(i)];
    for (size_t i = 0; i < simulation.records().size(); ++i) {
      const Record& record = simulation.records()[i];
      ++errors[static_cast<size_t>(record.error)];
      stop_strings += record.stop_strings;
      bad_ids += record.bad_ids && record.error == ErrorCode::kInvalidArgument ? 1 : 0;
    }
  }
};

// The simulation with these options, twice. The options go out first: whatever happens then can be
// repeated.
void RunTwice(const SwarmOptions& options, Total& total) {
  std::printf("sim %s\n", ToString(options).c_str());
  std::fflush(stdout);
  SwarmRun first(options);
  if (!first.simulation().violations().empty()) {
    SwarmRun smallest(SmallestFailure(first));
    for (const std::string& violation : smallest.simulation().violations()) {
      ADD_FAILURE() << violation << "\nof " << ToString(smallest.options()) << "\nrepeat with "
                    << EnvironmentOf(smallest.options());
    }
  }
  SwarmRun second(options);
  EXPECT_EQ(first.simulation().event_hash(), second.simulation().event_hash())
      << "two runs of one seed differ; repeat with KVERN_SIM_SEED=" << options.sim.seed;
  EXPECT_EQ(first.simulation().events(), second.simulation().events());
  total.Add(first.simulation());
}

uint64_t FreshSeed() {
  std::ifstream random("/dev/urandom", std::ios::binary);
  uint64_t seed = 0;
  random.read(reinterpret_cast<char*>(&seed), sizeof(seed));
  return seed;
}

TEST(Simulation, NothingWrongEverHappensAndEverythingGoodDoes) {
  Total total;
  absl::StatusOr<std::optional<SwarmOptions>> said =
      OptionsFrom([](const char* name) { return std::getenv(name); });
  ASSERT_TRUE(said.ok()) << said.status();
  if (*said) return RunTwice(**said, total);
  for (uint64_t seed = 1; seed <= kFixedSeeds; ++seed) {
    RunTwice(DrawOptions(seed), total);
  }
  // The fixed seeds must reach every way a request can end, or the checks above saw little.
  auto ended = [&](ErrorCode code) { return total.errors[static_cast<size_t>(code)]; };
  EXPECT_GT(total.completed, 500u);
  EXPECT_GT(total.stop_strings, 10u);
  EXPECT_GT(total.lost_groups, 20u);
  EXPECT_GT(ended(ErrorCode::kNeverFits), 20u);
  EXPECT_GT(ended(ErrorCode::kOverloaded), 20u);
  EXPECT_GT(ended(ErrorCode::kDeadlineExceeded), 20u);
  EXPECT_GT(ended(ErrorCode::kCancelled), 20u);
  EXPECT_GT(ended(ErrorCode::kUnavailable), 20u);
  EXPECT_GT(ended(ErrorCode::kQuotaExceeded), 5u);
  EXPECT_GT(ended(ErrorCode::kInvalidArgument), 5u);
  EXPECT_GT(total.bad_ids, 20u);
  EXPECT_EQ(ended(ErrorCode::kInternal), 0u);
  EXPECT_GT(total.flow.paused, 500u);
  EXPECT_GT(total.flow.resumed, 300u);
  EXPECT_GT(total.flow.timed_out, 50u);
  EXPECT_GT(total.flow.crowded, 50u);
  for (size_t i = 0; i < kNumFaults; ++i) EXPECT_GT(total.faults[i], 5u) << kFaultNames[i];
  const char* fresh = std::getenv("KVERN_SIM_FRESH");
  uint64_t fresh_seeds = fresh == nullptr ? kFreshSeeds : std::strtoull(fresh, nullptr, 10);
  for (uint64_t i = 0; i < fresh_seeds; ++i) {
    RunTwice(DrawOptions(FreshSeed()), total);
  }
}

TEST(Simulation, OtherSeedsGiveOtherRuns) {
  SwarmRun one(DrawOptions(1)), two(DrawOptions(2));
  EXPECT_NE(one.simulation().event_hash(), two.simulation().event_hash());
}

// Each mistake must be seen by the check that is there for it, within a few seeds.
TEST(Simulation, TheChecksSeeMistakes) {
  for (uint8_t number = 1; number <= static_cast<uint8_t>(kLastBug); ++number) {
    Bug bug{number};
    std::string check = CheckThatSees(bug);
    bool seen = false;
    std::string others;
    for (uint64_t seed = 1; seed <= kSeedsPerBug && !seen; ++seed) {
      SwarmOptions options = DrawOptions(seed);
      options.bug = bug;
      options.sim.faults[Fault::kCancel] = 30;
      SwarmRun run(options);
      for (const std::string& violation : run.simulation().violations()) {
        seen = seen || violation.find(check + ":") != std::string::npos;
        others += violation + "\n";
      }
    }
    std::printf("bug %d seen: %s", int{number}, others.substr(0, others.find('\n') + 1).c_str());
    EXPECT_TRUE(seen) << "bug " << int{number} << " was not seen by " << check << ", but:\n"
                      << others;
  }
}

// A mistake fails in a smaller run, too, and what is said of that is enough to make it again.
TEST(Simulation, TheSmallestFailureCanBeRepeated) {
  SwarmOptions options = DrawOptions(3);
  options.bug = Bug::kWrongToken;
  SwarmRun failing(options);
  ASSERT_FALSE(failing.simulation().violations().empty());
  SwarmRun smallest(SmallestFailure(failing));
  ASSERT_FALSE(smallest.simulation().violations().empty());
  EXPECT_LT(smallest.simulation().records().size(), failing.simulation().records().size());
  EXPECT_THAT(smallest.simulation().violations()[0], ::testing::HasSubstr("S1: "));

  std::map<std::string, std::string> environment;
  for (absl::string_view set : absl::StrSplit(EnvironmentOf(smallest.options()), ' ')) {
    environment.insert(absl::StrSplit(set, absl::MaxSplits('=', 1)));
  }
  auto said = OptionsFrom([&](const char* name) -> const char* {
    auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
  ASSERT_TRUE(said.ok() && *said) << said.status();
  (*said)->bug = options.bug;
  SwarmRun again(**said);
  EXPECT_EQ(again.simulation().event_hash(), smallest.simulation().event_hash());
  EXPECT_EQ(again.simulation().violations(), smallest.simulation().violations());
}

}  // namespace
}  // namespace kvern::sim
