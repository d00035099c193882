// A bounded dose of simulation in every test run: fixed seeds, a few fresh ones, each run twice;
// and the proof that the checks see mistakes.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/sim/simulation.h"

namespace kvern::sim {
namespace {

// About two seconds of one core in a release build.
constexpr uint64_t kFixedSeeds = 40;
constexpr uint64_t kFreshSeeds = 10;
constexpr uint64_t kSeedsPerBug = 12;

// The simulation with these options, twice. The options go out first: whatever happens then can be
// repeated.
void RunTwice(const SimOptions& options, Tally& total, uint64_t& lost_groups) {
  std::printf("sim %s\n", ToString(options).c_str());
  std::fflush(stdout);
  Simulation first(options);
  first.Run();
  for (const std::string& violation : first.violations()) {
    ADD_FAILURE() << violation << "\nrepeat with KVERN_SIM_SEED=" << options.seed;
  }
  Simulation second(options);
  second.Run();
  EXPECT_EQ(first.event_hash(), second.event_hash())
      << "two runs of one seed differ; repeat with KVERN_SIM_SEED=" << options.seed;
  EXPECT_EQ(first.events(), second.events());
  total.issued += first.tally().issued;
  total.completed += first.tally().completed;
  total.tokens += first.tally().tokens;
  total.stop_strings += first.tally().stop_strings;
  for (size_t code = 0; code <= kLastErrorCode; ++code) {
    total.errors[code] += first.tally().errors[code];
  }
  lost_groups += first.lost_groups();
}

uint64_t FreshSeed() {
  std::ifstream random("/dev/urandom", std::ios::binary);
  uint64_t seed = 0;
  random.read(reinterpret_cast<char*>(&seed), sizeof(seed));
  return seed;
}

TEST(Simulation, NothingWrongEverHappensAndEverythingGoodDoes) {
  Tally total;
  uint64_t lost_groups = 0;
  if (const char* seed = std::getenv("KVERN_SIM_SEED")) {
    RunTwice(DrawOptions(std::strtoull(seed, nullptr, 10)), total, lost_groups);
    return;
  }
  for (uint64_t seed = 1; seed <= kFixedSeeds; ++seed) {
    RunTwice(DrawOptions(seed), total, lost_groups);
  }
  // The fixed seeds must reach every way a request can end, or the checks above saw little.
  auto ended = [&](ErrorCode code) { return total.errors[static_cast<size_t>(code)]; };
  EXPECT_GT(total.completed, 500u);
  EXPECT_GT(total.stop_strings, 10u);
  EXPECT_GT(lost_groups, 20u);
  EXPECT_GT(ended(ErrorCode::kNeverFits), 20u);
  EXPECT_GT(ended(ErrorCode::kOverloaded), 20u);
  EXPECT_GT(ended(ErrorCode::kDeadlineExceeded), 20u);
  EXPECT_GT(ended(ErrorCode::kCancelled), 20u);
  EXPECT_GT(ended(ErrorCode::kUnavailable), 20u);
  EXPECT_GT(ended(ErrorCode::kInvalidArgument), 5u);
  EXPECT_EQ(ended(ErrorCode::kInternal), 0u);
  const char* fresh = std::getenv("KVERN_SIM_FRESH");
  uint64_t fresh_seeds = fresh == nullptr ? kFreshSeeds : std::strtoull(fresh, nullptr, 10);
  for (uint64_t i = 0; i < fresh_seeds; ++i) {
    RunTwice(DrawOptions(FreshSeed()), total, lost_groups);
  }
}

TEST(Simulation, OtherSeedsGiveOtherRuns) {
  Simulation one(DrawOptions(1)), two(DrawOptions(2));
  one.Run();
  two.Run();
  EXPECT_NE(one.event_hash(), two.event_hash());
}

// Each mistake must be seen by the check that is there for it, within a few seeds.
TEST(Simulation, TheChecksSeeMistakes) {
  for (uint8_t number = 1; number <= static_cast<uint8_t>(kLastBug); ++number) {
    Bug bug{number};
    std::string check = CheckThatSees(bug);
    bool seen = false;
    std::string others;
    for (uint64_t seed = 1; seed <= kSeedsPerBug && !seen; ++seed) {
      SimOptions options = DrawOptions(seed);
      options.bug = bug;
      options.cancel_percent = 30;
      Simulation simulation(options);
      simulation.Run();
      for (const std::string& violation : simulation.violations()) {
        seen = seen || violation.find(check + ":") != std::string::npos;
        others += violation + "\n";
      }
    }
    std::printf("bug %d seen: %s", int{number}, others.substr(0, others.find('\n') + 1).c_str());
    EXPECT_TRUE(seen) << "bug " << int{number} << " was not seen by " << check << ", but:\n"
                      << others;
  }
}

}  // namespace
}  // namespace kvern::sim
