// What the command line's values may be, and what a policy makes of a run.
#include "tools/sim/run_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tools/sim/simulation.h"
#include "tools/sim/sized_workload.h"

namespace kvern::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename T>
std::string ErrorOf(const absl::StatusOr<T>& result) {
  return std::string(result.status().message());
}

TEST(RunConfig, DeclaredTokens) {
  auto declared = ParseDeclared("4096:0.7,1024:0.3");
  ASSERT_TRUE(declared.ok()) << declared.status();
  EXPECT_THAT(*declared, ElementsAre(Declared{4096, 700}, Declared{1024, 300}));
  EXPECT_TRUE(ParseDeclared("1:1").ok());
  EXPECT_THAT(ErrorOf(ParseDeclared("")), HasSubstr("'' is not max_tokens:share"));
  EXPECT_THAT(ErrorOf(ParseDeclared("4096")), HasSubstr("'4096' is not max_tokens:share"));
  EXPECT_THAT(ErrorOf(ParseDeclared("4096:0.7:1")), HasSubstr("is not max_tokens:share"));
  EXPECT_THAT(ErrorOf(ParseDeclared("0:1")), HasSubstr("'0' is not a whole number from 1"));
  EXPECT_THAT(ErrorOf(ParseDeclared("4096:1.5")), HasSubstr("'1.5' is not a number from 0 to 1"));
  EXPECT_THAT(ErrorOf(ParseDeclared("4096:0.7")), HasSubstr("add up to 0.7, allowed: 1"));
  EXPECT_THAT(ErrorOf(ParseDeclared("4096:0.7,1:0.7")), HasSubstr("add up to 1.4"));
  EXPECT_THAT(ErrorOf(ParseDeclared("4096:nan")), HasSubstr("'nan' is not a number"));
}

TEST(RunConfig, Shares) {
  auto shares = ParseShares("50,1,0");
  ASSERT_TRUE(shares.ok()) << shares.status();
  EXPECT_THAT(*shares, ElementsAre(50, 1, 0));
  EXPECT_THAT(ErrorOf(ParseShares("")), HasSubstr("'' is not a whole number"));
  EXPECT_THAT(ErrorOf(ParseShares("1,,2")), HasSubstr("'' is not a whole number"));
  EXPECT_THAT(ErrorOf(ParseShares("1,-1")), HasSubstr("'-1'"));
  EXPECT_THAT(ErrorOf(ParseShares("0,0")), HasSubstr("all shares are 0"));
  std::string many = "1";
  for (int i = 0; i < 1000; ++i) many += ",1";
  EXPECT_THAT(ErrorOf(ParseShares(many)), HasSubstr("1001 tenants, allowed: 1 to 1000"));
}

TEST(RunConfig, OnlyOneTenant) {
  RunConfig config;
  config.shares = {50, 1, 0};
  config.only_tenant = "t1";
  EXPECT_EQ(MakePlan(config, 1, nullptr)->workload.only_tenant, 1u);
  // The capacity is that of all requests.
  EXPECT_EQ(MakeCapacityPlan(config, nullptr)->workload.only_tenant, std::nullopt);
  config.only_tenant = "t2";
  EXPECT_THAT(ErrorOf(MakePlan(config, 1, nullptr)), HasSubstr("the share of t2 is 0"));
  config.only_tenant = "t3";
  EXPECT_THAT(ErrorOf(MakePlan(config, 1, nullptr)),
              HasSubstr("--only-tenant: 't3' is none of the 3 tenants"));
}

TEST(RunConfig, Numbers) {
  EXPECT_EQ(*ParseNumber("0.5", 0, 1), 0.5);
  for (const char* bad : {"", "x", "1x", "-0.1", "1.1", "nan", "inf"}) {
    EXPECT_THAT(ErrorOf(ParseNumber(bad, 0, 1)), HasSubstr("is not a number from 0 to 1")) << bad;
  }
}

TEST(RunConfig, UnknownNamesAreRefused) {
  RunConfig config;
  config.workload = "waves";
  EXPECT_THAT(ErrorOf(MakePlan(config, 1, nullptr)), HasSubstr("--workload: 'waves', allowed:"));
  config.workload = "poisson";
  config.policy = "lifo";
  EXPECT_THAT(ErrorOf(MakePlan(config, 1, nullptr)), HasSubstr("--policy: 'lifo', allowed:"));
}

// But for the last ones, the policies are nothing but a class and options of the same router.
TEST(RunConfig, Policies) {
  RunConfig config;
  RunPlan kvern = *MakePlan(config, 1, nullptr);
  EXPECT_EQ(kvern.workload.service_class, ServiceClass::kStandard);
  EXPECT_EQ(kvern.workload.ttft_deadline_ms, 2000u);
  EXPECT_FALSE(kvern.workload.declare_true_length);
  EXPECT_EQ(kvern.options.router.output_quantile_percent, RouterConfig().output_quantile_percent);
  EXPECT_EQ(kvern.options.router.watermark_percent, RouterConfig().watermark_percent);
  EXPECT_EQ(kvern.options.router.queue_entries, RouterConfig().queue_entries);
  config.policy = "reserve-max";
  RunPlan reserve = *MakePlan(config, 1, nullptr);
  EXPECT_EQ(reserve.workload.service_class, ServiceClass::kGuaranteed);
  EXPECT_EQ(reserve.workload.ttft_deadline_ms, 2000u);
  config.policy = "optimistic";
  RunPlan optimistic = *MakePlan(config, 1, nullptr);
  EXPECT_EQ(optimistic.workload.service_class, ServiceClass::kStandard);
  EXPECT_EQ(optimistic.options.router.output_quantile_percent, 0u);
  EXPECT_EQ(optimistic.options.router.queue_entries, kvern.options.router.queue_entries);
  config.policy = "clairvoyant";
  RunPlan clairvoyant = *MakePlan(config, 1, nullptr);
  EXPECT_TRUE(clairvoyant.workload.declare_true_length);
  EXPECT_EQ(clairvoyant.options.router.output_quantile_percent, 100u);
  EXPECT_EQ(clairvoyant.options.router.watermark_percent, 0u);
  EXPECT_EQ(clairvoyant.options.router.queue_entries, kvern.options.router.queue_entries);
  EXPECT_EQ(clairvoyant.workload.ttft_deadline_ms, 2000u);
  config.policy = "fifo";
  RunPlan fifo = *MakePlan(config, 1, nullptr);
  EXPECT_EQ(fifo.options.router.output_quantile_percent, 0u);
  EXPECT_FALSE(fifo.workload.ttft_deadline_ms.has_value());
  EXPECT_GT(fifo.options.router.default_ttft_deadline, 1000 * kSecond);
  EXPECT_GT(fifo.options.router.queue_entries, 1'000'000u);
  EXPECT_FALSE(fifo.options.least_requests);
  config.policy = "least-requests";
  EXPECT_TRUE(MakePlan(config, 1, nullptr)->options.least_requests);
  EXPECT_FALSE(MakeCapacityPlan(config, nullptr)->options.least_requests);
  config.faults = "all";
  EXPECT_THAT(ErrorOf(MakePlan(config, 1, nullptr)),
              HasSubstr("allowed with least-requests: none"));
}

TEST(RunConfig, OptimisticAsInEngines) {
  RunConfig config;
  EXPECT_FALSE(MakePlan(config, 1, nullptr)->options.optimistic.has_value());
  config.policy = "optimistic-memory";
  RunPlan memory = *MakePlan(config, 1, nullptr);
  ASSERT_TRUE(memory.options.optimistic.has_value());
  EXPECT_FALSE(memory.options.optimistic->step_budget);
  EXPECT_EQ(memory.options.optimistic->max_running, UINT64_MAX);
  // The queue is kvern's, with all it predicts from.
  EXPECT_EQ(memory.workload.ttft_deadline_ms, 2000u);
  EXPECT_EQ(memory.options.router.output_quantile_percent, RouterConfig().output_quantile_percent);
  EXPECT_EQ(memory.options.router.queue_wait_max, RouterConfig().queue_wait_max);
  config.policy = "optimistic-engine";
  config.max_running = 64;
  RunPlan engine = *MakePlan(config, 1, nullptr);
  EXPECT_TRUE(engine.options.optimistic->step_budget);
  EXPECT_EQ(engine.options.optimistic->max_running, 64u);
  // The capacity is the same for all.
  EXPECT_FALSE(MakeCapacityPlan(config, nullptr)->options.optimistic.has_value());
  config.policy = "optimistic";
  EXPECT_THAT(ErrorOf(MakePlan(config, 1, nullptr)),
              HasSubstr("--max-running: 64, not allowed with --policy optimistic"));
}

TEST(RunConfig, WhereNothingIsLetInTheCapacityTakesSoManyRequestsAndNoMore) {
  RunConfig config;
  config.load = 1;
  config.kv_tokens = 16;
  config.max_requests = 5;  // of the run: not enough to find a capacity
  RunPlan plan = *MakeCapacityPlan(config, nullptr);
  EXPECT_EQ(plan.options.max_requests, 200'000u);
  plan.options.max_requests = 100;
  plan.options.duration = kSecond;
  SizedWorkload workload(plan.workload, plan.options.model, plan.options.seed);
  Simulation simulation(plan.options, workload, nullptr);
  simulation.Run();
  EXPECT_EQ(simulation.records().size(), 100u);
}

}  // namespace
}  // namespace kvern::sim
