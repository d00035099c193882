// Runs that fail: what is said of them, and the smallest that still fails can be repeated.
#include "tools/sim/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

#include "absl/strings/str_split.h"
#include "tools/sim/command_line.h"

namespace kvern::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;

const std::vector<std::string> kArguments = {"--rate",
                                             "7.123456789012345",
                                             "--seed",
                                             "3",
                                             "--duration",
                                             "20",
                                             "--faults=cancel,reader-slow,group-killed",
                                             "--max-requests",
                                             "100"};

RunConfig ConfigOf(const std::vector<std::string>& arguments) {
  RunConfig config;
  Options options("kvern-sim", "");
  AddOptions(options, config);
  absl::Status parsed = options.Parse(arguments);
  EXPECT_TRUE(parsed.ok()) << parsed;
  return config;
}

RunPlan PlanOf(const RunConfig& config) { return *MakePlan(config, config.rate, nullptr); }

// The planted mistake: a token is another one than the model said.
void SpoilTokens(Time /*now*/, RouterEffects& effects) {
  for (ToClient& to : effects.to_clients) {
    auto* deltas = std::get_if<Deltas>(&to.message);
    if (deltas == nullptr) continue;
    for (Delta& delta : deltas->deltas) {
      if (delta.position == 5 && !delta.token_ids.empty()) ++delta.token_ids[0];
    }
  }
}

TEST(Trial, AChildSaysWhatItSaid) {
  ChildOutcome outcome = RunInChild([] {
    std::printf("out");
    std::fprintf(stderr, "err");
    return 3;
  });
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.output, "out");
  EXPECT_EQ(outcome.errors, "err");
}

TEST(Trial, NamesTheCheckThatFails) {
  RunPlan plan = PlanOf(ConfigOf(kArguments));
  EXPECT_EQ(FailingCheckInChild(plan), "");
  EXPECT_FALSE(FindSmallest(ConfigOf(kArguments), plan));
  plan.tamper = SpoilTokens;
  EXPECT_EQ(FailingCheckInChild(plan), "S1");
  plan.options.router.stream_window = 0;  // which kills the router
  EXPECT_THAT(FailingCheckInChild(plan), HasSubstr("router/core/router.cc:"));
}

TEST(Trial, TheSmallestFailureIsRepeatedByItsCommand) {
  RunConfig config = ConfigOf(kArguments);
  RunPlan failing = PlanOf(config);
  failing.tamper = SpoilTokens;
  std::optional<SmallestRun> smallest = FindSmallest(config, failing);
  ASSERT_TRUE(smallest);
  EXPECT_EQ(smallest->check, "S1");
  std::string line = LineWith(kArguments, smallest->config);
  EXPECT_THAT(line, MatchesRegex("--rate 7.123456789012345 --seed 3 --duration 20 --faults none "
                                 "--max-requests [1-9]"));
  RunPlan again = PlanOf(ConfigOf(absl::StrSplit(line, ' ')));
  again.tamper = SpoilTokens;
  Results shown = RunHere(smallest->plan);
  Results repeated = RunHere(again);
  EXPECT_THAT(shown.violations[0], HasSubstr("S1: "));
  EXPECT_EQ(repeated.violations, shown.violations);
  EXPECT_EQ(repeated.event_hash, shown.event_hash);
}

// With --load the rate is found again: it must not hang on what was left out.
TEST(Trial, TheCapacityIsTheSameWhateverGoesWrong) {
  RunConfig config = ConfigOf(kArguments);
  double before = *FindCapacity(config, nullptr);
  config.faults = "none";
  config.max_requests = 1;
  EXPECT_EQ(*FindCapacity(config, nullptr), before);
}

}  // namespace
}  // namespace kvern::sim
