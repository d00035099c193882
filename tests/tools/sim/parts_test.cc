// The simulator's parts on their own: the queue of events, faults by name, the fake model,
// workloads, the fairness meter, shrinking.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "cluster/base/rng.h"
#include "tools/sim/event_queue.h"
#include "tools/sim/fairness.h"
#include "tools/sim/faults.h"
#include "tools/sim/shrink.h"
#include "tools/sim/sized_workload.h"

namespace kvern::sim {
namespace {

using ::testing::HasSubstr;

TEST(Faults, ByName) {
  EXPECT_EQ(NamesOf(*ParseFaults("none", 1)), "none");
  EXPECT_EQ(NamesOf(*ParseFaults("cancel,group-killed", 1)), "group-killed,cancel");
  FaultLevels all = *ParseFaults("all", 2);
  for (size_t i = 0; i < kNumFaults; ++i) EXPECT_GT(all[Fault(i)], 0u) << kFaultNames[i];
  std::set<std::string> names(kFaultNames.begin(), kFaultNames.end());
  EXPECT_EQ(names.size(), kNumFaults);
  EXPECT_GE(kNumFaults, 20u);
  // What the shrinker prints is what the option takes.
  EXPECT_EQ(NamesOf(*ParseFaults(NamesOf(all), 2)), NamesOf(all));
  for (const char* bad : {"", "fire", "cancel,", "all,cancel"}) {
    EXPECT_THAT(std::string(ParseFaults(bad, 1).status().message()),
                HasSubstr("allowed: none, all"))
        << bad;
  }
}

TEST(EventQueue, TakesByTimeThenByOrderOfScheduling) {
  // Beside an ordered set: steps of all lengths, equal times, and events for now.
  Rng rng(1);
  EventQueue queue;
  std::set<std::pair<Time, uint64_t>> expected;
  uint64_t pushed = 0;
  auto push = [&](Duration ahead) {
    Time at = queue.now() + ahead;
    queue.Push(at, EventKind::kCall, 0, pushed);
    expected.insert({at, pushed++});
  };
  for (int i = 0; i < 100; ++i) push(i * kMillisecond);
  for (int i = 0; i < 20'000 && !expected.empty(); ++i) {
    for (uint64_t more = rng.Below(expected.size() < 300 ? 4 : 2); more > 0 && i < 15'000; --more) {
      Duration longest = int64_t{1} << rng.Below(36);
      push(rng.Between(0, longest) / kMicrosecond * kMicrosecond);
    }
    ASSERT_EQ(queue.NextTime(), expected.begin()->first);
    size_t ahead = 0;
    for (auto next = expected.begin(); next != expected.end(); ++next, ++ahead) {
      const Event* soon = queue.Soon(ahead);
      if (soon == nullptr) break;
      ASSERT_EQ(soon->value, next->second);
    }
    ASSERT_GE(ahead, 1u);
    Event event = queue.Pop();
    ASSERT_EQ(event.value, expected.begin()->second);
    ASSERT_EQ(queue.now(), expected.begin()->first);
    expected.erase(expected.begin());
    ASSERT_EQ(queue.empty(), expected.empty());
  }
  EXPECT_GT(pushed, 10'000u);
  EXPECT_TRUE(expected.empty());
}

TEST(FakeModel, EndsWhereTheSeedSays) {
  FakeModel model{.vocab = 100, .eos = 7, .length_in_seed = true};
  for (uint64_t serial : {1u, 2u, 99u}) {
    uint64_t seed = SeedWithLength(serial, 5);
    for (uint32_t position = 0; position < 4; ++position) {
      EXPECT_NE(model.Token(model.VoiceOf(seed, 0), position), model.eos);
      EXPECT_LT(model.Token(model.VoiceOf(seed, 0), position), model.vocab);
    }
    EXPECT_EQ(model.Token(model.VoiceOf(seed, 0), 4), model.eos);
    // Another choice has another length, at most twice as long.
    uint32_t length = LengthInSeed(seed, 1);
    EXPECT_GE(length, 1u);
    EXPECT_LE(length, 10u);
    EXPECT_EQ(model.Token(model.VoiceOf(seed, 1), length - 1), model.eos);
  }
  EXPECT_NE(model.Token(model.VoiceOf(SeedWithLength(1, 50), 0), 3),
            model.Token(model.VoiceOf(SeedWithLength(2, 50), 0), 3));
}

TEST(FakeExecutor, DiesOfAPlanThatNoRankCouldExecute) {
  FakeExecutor executor(FakeModel{});
  StepResult result;
  StepPlan plan;
  plan.rows = {{0, 0, 1, false}};
  EXPECT_DEATH(executor.Execute(plan, result), "slot 0");
  SequenceStart start;
  start.tokens = {1, 2, 3};
  start.prompt_tokens = 3;
  plan.starts = {start};
  plan.rows = {{0, 0, 2, false}, {0, 1, 1, false}};
  EXPECT_DEATH(executor.Execute(plan, result), "row.start");
  plan.rows = {{0, 0, 2, true}};
  EXPECT_DEATH(executor.Execute(plan, result), "sequence.known");
}

SizedOptions Sized(Arrivals arrivals, double rate) {
  SizedOptions options;
  options.arrivals = arrivals;
  options.rate = rate;
  options.declared = {{4096, 700}, {1024, 300}};
  return options;
}

// Requests that arrive within `seconds`.
uint64_t Count(SizedWorkload& workload, int seconds) {
  uint64_t count = 0;
  while (workload.Next()->at < seconds * kSecond) ++count;
  return count;
}

TEST(SizedWorkload, MeetsItsRate) {
  SizedWorkload poisson(Sized(Arrivals::kPoisson, 10), FakeModel{}, 1);
  EXPECT_NEAR(static_cast<double>(Count(poisson, 1000)), 10'000, 300);
  SizedWorkload bursts(Sized(Arrivals::kBursts, 10), FakeModel{}, 1);
  EXPECT_NEAR(static_cast<double>(Count(bursts, 10'000)), 100'000, 10'000);
}

TEST(SizedWorkload, FlashIsTenTimesTheRateForATenth) {
  SizedOptions options = Sized(Arrivals::kFlash, 10);
  options.duration = 300 * kSecond;
  SizedWorkload flash(options, FakeModel{}, 1);
  EXPECT_NEAR(static_cast<double>(Count(flash, 100)), 1000, 100);
  EXPECT_NEAR(static_cast<double>(Count(flash, 130)), 3000, 200);
  EXPECT_NEAR(static_cast<double>(Count(flash, 300)), 1700, 150);
}

TEST(SizedWorkload, RepeatsATraceAtItsRate) {
  SizedOptions options = Sized(Arrivals::kTrace, 2);
  auto rows = std::make_shared<std::vector<TraceRow>>();
  for (uint32_t i = 0; i < 5; ++i) rows->push_back({i * kMillisecond, 10 + i, 1 + i, {}});
  options.trace = rows;
  SizedWorkload workload(options, FakeModel{}, 1);
  for (uint32_t i = 0; i < 12; ++i) {
    Ask ask = *workload.Next();
    EXPECT_NEAR(static_cast<double>(ask.at), i * 0.5e9, 10) << i;
    EXPECT_EQ(ask.request.prompt_token_ids->size(), 10 + i % 5);
    EXPECT_EQ(LengthInSeed(*ask.request.seed, 0), 1 + i % 5);
  }
}

TEST(SizedWorkload, SharesPrefixesAndDeclaresAtRandom) {
  SizedOptions options = Sized(Arrivals::kTrace, 1);
  auto rows = std::make_shared<std::vector<TraceRow>>();
  rows->push_back({0, 1000, 2000, {3, 4}});
  rows->push_back({kSecond, 1100, 2000, {3, 5}});
  options.trace = rows;
  SizedWorkload workload(options, FakeModel{.vocab = 1000, .eos = 0}, 1);
  std::map<uint32_t, int> declared;
  TokenIds a = *workload.Next()->request.prompt_token_ids;
  TokenIds b = *workload.Next()->request.prompt_token_ids;
  EXPECT_TRUE(std::equal(a.begin(), a.begin() + kPrefixTokens, b.begin()));
  EXPECT_NE(a[kPrefixTokens], b[kPrefixTokens]);
  for (int i = 0; i < 1000; ++i) {
    GenerateRequest request = workload.Next()->request;
    ++declared[*request.max_tokens];
    // An output longer than what is declared ends there.
    EXPECT_EQ(LengthInSeed(*request.seed, 0), std::min(2000u, *request.max_tokens));
  }
  EXPECT_NEAR(declared[4096], 700, 50);
  EXPECT_EQ(declared[4096] + declared[1024], 1000);
}

TEST(SizedWorkload, OneTenantAloneAsksAsAmongTheOthers) {
  SizedOptions options = Sized(Arrivals::kPoisson, 100);
  options.shares = {50, 1, 3};
  SizedWorkload all(options, FakeModel{}, 1);
  options.only_tenant = 2;
  SizedWorkload alone(options, FakeModel{}, 1);
  for (int left = 100; left > 0;) {
    Ask expected = *all.Next();
    if (all.clients()[expected.client] != 2) continue;
    --left;
    Ask ask = *alone.Next();
    EXPECT_EQ(ask.at, expected.at);
    EXPECT_EQ(ask.client, expected.client);
    EXPECT_EQ(ask.request.prompt_token_ids, expected.request.prompt_token_ids);
    EXPECT_EQ(ask.request.max_tokens, expected.request.max_tokens);
    EXPECT_EQ(ask.request.seed, expected.request.seed);
  }
}

// Two tenants of weights 1 and 2; both wait in band 0.
class Fairness : public ::testing::Test {
 protected:
  void SetUp() override {
    for (uint32_t tenant : {0u, 1u}) meter_.Waits(tenant, 0, /*anew=*/true);
    EXPECT_EQ(meter_.TurnOver(), "");
  }
  std::string Start(uint32_t tenant, uint64_t prompt_tokens, bool head, int32_t band = 0) {
    meter_.Started(tenant, band, prompt_tokens, head);
    return meter_.TurnOver();
  }

  FairnessMeter meter_{{1, 2}};
};

TEST_F(Fairness, CountsWhileBothWait) {
  EXPECT_EQ(Start(0, 100, true), "");
  EXPECT_EQ(meter_.gap(), 100u);
  EXPECT_EQ(Start(1, 200, true), "");  // weight 2: as much again
  EXPECT_EQ(meter_.gap(), 100u);
  meter_.Leaves(1, 0);
  EXPECT_EQ(Start(0, 10'000, true), "");
  EXPECT_EQ(meter_.gap(), 100u);
  meter_.Waits(1, 0, /*anew=*/true);  // which counts from here on
  EXPECT_EQ(Start(0, 90, true), "");
  EXPECT_EQ(meter_.gap(), 100u);
}

TEST_F(Fairness, AnOutputTokenCountsTwice) {
  meter_.Heard(0, 0, 3);
  EXPECT_EQ(Start(0, 1, true), "");
  EXPECT_EQ(meter_.gap(), 7u);
}

TEST_F(Fairness, AHeadIsOfTheTenantThatHasLeast) {
  EXPECT_EQ(Start(0, 100, true), "");
  EXPECT_EQ(Start(0, 100, true),
            "in band 0, the services of tenants 0 and 1, that wait, drifted "
            "apart by 200 tokens, allowed: 100");
}

TEST_F(Fairness, WhatPassesAHeadIsAllowed) {
  meter_.LinedUp(1, 0, 60);
  EXPECT_EQ(Start(0, 100, true), "");
  EXPECT_EQ(Start(0, 30, false), "");
  EXPECT_EQ(Start(0, 30, false), "");
  EXPECT_EQ(meter_.gap(), 160u);
}

TEST_F(Fairness, WhatPassesHeadsIsBoundedByTheTheorem) {
  meter_.LinedUp(1, 0, 100);  // of weight 2: 100 tokens of service
  // A prompt of 10, 20 tokens of output that may come, twice, and what the other's head may take.
  meter_.Started(0, 0, 10, /*head=*/false, /*output=*/20);
  EXPECT_EQ(meter_.TurnOver(), "");
  EXPECT_EQ(meter_.allowed_gap(), 150u);
  meter_.Heard(0, 0, 5);
  meter_.Ended(0, 0, 15);
  for (uint64_t gap = 30; gap <= 150; gap += 10) {
    EXPECT_EQ(Start(0, 10, /*head=*/false), "") << gap;
    EXPECT_EQ(meter_.gap(), gap);
  }
  EXPECT_EQ(Start(0, 10, /*head=*/false),
            "in band 0, the services of tenants 0 and 1, that wait, drifted "
            "apart by 160 tokens, allowed: 150 by the theorem");
  // Output that was not to come may be heard of all the same.
  meter_.Heard(0, 0, 5, /*beyond=*/5);
  EXPECT_EQ(Start(0, 0, /*head=*/false),
            "in band 0, the services of tenants 0 and 1, that wait, drifted "
            "apart by 170 tokens, allowed: 160 by the theorem");
  // Whatever of that was before its last start does not add up.
  meter_.Heard(0, 0, 5, /*beyond=*/5);
  EXPECT_EQ(Start(0, 0, /*head=*/false),
            "in band 0, the services of tenants 0 and 1, that wait, drifted "
            "apart by 180 tokens, allowed: 160 by the theorem");
}

TEST_F(Fairness, BandsAreCountedApart) {
  EXPECT_EQ(Start(0, 100, true), "");
  for (uint32_t tenant : {0u, 1u}) meter_.Waits(tenant, 3, /*anew=*/true);
  EXPECT_EQ(Start(0, 100, true, /*band=*/3), "");
  EXPECT_EQ(meter_.gap(), 100u);
}

TEST_F(Fairness, WhatMayNotHaveBeenChargedIsForgotten) {
  meter_.Heard(0, 0, 1000);
  meter_.Forget();
  EXPECT_EQ(meter_.TurnOver(), "");
  EXPECT_EQ(meter_.gap(), 0u);
}

TEST(Shrink, KeepsWhatTheFailureNeeds) {
  SimOptions failing;
  failing.faults = *ParseFaults("all", 1);
  // Fails with cancels and a frozen group when there are at least 10 requests; without the cancels
  // another check fails.
  auto run = [](const SimOptions& options) -> std::string {
    if (options.max_requests < 10 || options.faults[Fault::kGroupFrozen] == 0) return "";
    return options.faults[Fault::kCancel] > 0 ? "S1" : "S3";
  };
  Shrunk shrunk = Shrink(failing, "S1", 1000, run);
  EXPECT_EQ(NamesOf(shrunk.options.faults), "group-frozen,cancel");
  EXPECT_EQ(shrunk.options.max_requests, 15u);
  EXPECT_EQ(shrunk.runs, kNumFaults + 7);
}

TEST(Shrink, NamesTheCheck) {
  EXPECT_EQ(CheckName("at 17 us: S10: request 3: output after the end"), "S10");
}

}  // namespace
}  // namespace kvern::sim
