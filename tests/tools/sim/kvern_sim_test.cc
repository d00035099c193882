// kvern-sim as a process, on a small trace that the test writes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "tools/sim/faults.h"

namespace kvern::sim {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

struct Outcome {
  int exit_code = -1;
  std::string output;
  std::string errors;
  nlohmann::json Json() const { return nlohmann::json::parse(output); }
};

class KvernSim : public ::testing::Test {
 protected:
  void SetUp() override {
    base_ = ::testing::TempDir() + "kvern_sim_test." + std::to_string(getpid());
    std::ofstream trace(TracePath());
    trace << "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";
    for (int i = 0; i < 50; ++i) {
      trace << "2023-11-16 18:15:" << 10 + i << ".5," << 100 + 37 * i << "," << 1 + 7 * i << "\r\n";
    }
  }
  void TearDown() override {
    std::remove(TracePath().c_str());
    std::remove(ErrorsPath().c_str());
  }

  std::string TracePath() const { return base_ + ".csv"; }
  std::string ErrorsPath() const { return base_ + ".err"; }
  std::string Trace() const { return "--workload trace:" + TracePath(); }

  Outcome Run(const std::string& arguments) {
    const char* folder = std::getenv("KVERN_BIN_DIR");
    std::string command = std::string(folder == nullptr ? "." : folder) + "/kvern-sim " +
                          arguments + " 2>" + ErrorsPath();
    Outcome outcome;
    FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) return outcome;
    char buffer[4096];
    for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
      outcome.output.append(buffer, n);
    }
    int status = pclose(pipe);
    outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    std::ostringstream errors;
    errors << std::ifstream(ErrorsPath()).rdbuf();
    outcome.errors = errors.str();
    return outcome;
  }

  std::string base_;
};

constexpr char kShort[] = " --policy reserve-max --duration 30 --json ";

TEST_F(KvernSim, ReplaysATrace) {
  Outcome outcome = Run(Trace() + " --rate 4 --seed 7" + kShort);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  // The seed comes first, so that whatever happens then can be repeated.
  EXPECT_THAT(outcome.errors, StartsWith("kvern-sim: seed 7, options: --workload trace:"));
  nlohmann::json json = outcome.Json();
  for (const char* field : {"seed",
                            "options",
                            "offered_rps",
                            "capacity_rps",
                            "goodput_rps",
                            "completed",
                            "refused",
                            "expired",
                            "ttft_ms",
                            "tpot_ms",
                            "preemptions",
                            "preempted_requests",
                            "recomputed_tokens",
                            "kv_used_mean",
                            "kv_reserved_mean",
                            "by_group",
                            "fairness_gap_tokens",
                            "fairness_bound_tokens",
                            "per_tenant",
                            "faults",
                            "violations",
                            "event_hash",
                            "wall_s",
                            "events"}) {
    EXPECT_TRUE(json.contains(field)) << field;
  }
  EXPECT_EQ(json["seed"], 7);
  // Of 30 s, the first 5 are not measured; the gaps are even, so the rate is met exactly.
  EXPECT_NEAR(json["offered_rps"].get<double>(), 4, 0.1);
  EXPECT_GT(json["goodput_rps"].get<double>(), 3);
  EXPECT_GT(json["ttft_ms"]["p99"].get<double>(), json["ttft_ms"]["p50"].get<double>());
  EXPECT_GT(json["kv_reserved_mean"].get<double>(), json["kv_used_mean"].get<double>());
  EXPECT_TRUE(json["violations"].empty());
  EXPECT_TRUE(json["faults"].empty());
}

TEST_F(KvernSim, SameSeedSameRun) {
  std::string options = "--workload poisson --rate 10 --faults all --groups 2 --check-repeat";
  Outcome one = Run(options + kShort + "--seed 1");
  Outcome again = Run(options + kShort + "--seed 1");
  Outcome other = Run(options + kShort + "--seed 2");
  ASSERT_EQ(one.exit_code, 0) << one.errors << one.output;
  EXPECT_EQ(one.Json()["event_hash"], again.Json()["event_hash"]);
  EXPECT_EQ(one.Json()["repeat_event_hash"], one.Json()["event_hash"]);
  EXPECT_NE(one.Json()["event_hash"], other.Json()["event_hash"]);
}

TEST_F(KvernSim, EveryKindOfFaultOccurs) {
  // Long enough that each finds what it is for up and running.
  Outcome outcome =
      Run("--workload poisson --rate 20 --faults all --groups 2 --tp 2 --policy reserve-max "
          "--duration 120 --json");
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors << outcome.output;
  nlohmann::json faults = outcome.Json()["faults"];
  for (size_t i = 0; i < kNumFaults; ++i) {
    bool of_text = Fault(i) == Fault::kTokenizerSlow || Fault(i) == Fault::kTextIllFormed;
    EXPECT_EQ(faults.contains(kFaultNames[i]), !of_text) << kFaultNames[i];
  }
}

TEST_F(KvernSim, Workloads) {
  for (const char* workload : {"poisson", "bursts", "flash"}) {
    Outcome outcome = Run(std::string("--rate 5 --workload ") + workload + kShort);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.errors << outcome.output;
    EXPECT_GT(outcome.Json()["completed"].get<int>(), 20) << workload;
  }
}

TEST_F(KvernSim, Policies) {
  for (const char* policy : {"kvern", "reserve-max", "optimistic", "optimistic-engine",
                             "optimistic-memory", "clairvoyant", "fifo", "least-requests"}) {
    Outcome outcome = Run(Trace() + " --load 3 --groups 2 --duration 30 --json --policy " + policy);
    ASSERT_EQ(outcome.exit_code, 0) << policy << outcome.errors << outcome.output;
    nlohmann::json json = outcome.Json();
    EXPECT_NEAR(json["offered_rps"].get<double>(), 3 * json["capacity_rps"].get<double>(),
                0.1 * json["offered_rps"].get<double>());
    EXPECT_GT(json["completed"].get<int>(), 20) << policy;
  }
}

// Where no deadline is near, what is left of the policies is their rule of memory.
TEST_F(KvernSim, OptimisticPoliciesHaveTheSameRuleOfMemory) {
  std::string run =
      "--workload poisson --rate 60 --duration 30 --slo-ttft 600s --kv-tokens 40000 --json ";
  nlohmann::json whole = Run(run + "--policy optimistic").Json();
  EXPECT_GT(whole["preemptions"].get<int>(), 0);
  nlohmann::json engine = Run(run + "--policy optimistic-engine --quantile 0").Json();
  EXPECT_EQ(engine["event_hash"], whole["event_hash"]);
  // Prompts that fill more than two steps are sent all the same.
  nlohmann::json memory = Run(run + "--policy optimistic-memory --quantile 0").Json();
  EXPECT_NE(memory["event_hash"], whole["event_hash"]);
  EXPECT_EQ(memory["violations"].size(), 0u) << memory["violations"];
}

TEST_F(KvernSim, OptimisticPoliciesStartWhatComesTooLate) {
  std::string run = "--workload poisson --rate 150 --duration 30 --json --policy ";
  auto late = [&](const char* policy) {
    nlohmann::json json = Run(run + policy).Json();
    return json["completed_rps"].get<double>() - json["goodput_rps"].get<double>();
  };
  double whole = late("optimistic");
  EXPECT_GT(late("optimistic-engine"), whole);
  EXPECT_GT(late("optimistic-memory"), whole);
}

TEST_F(KvernSim, FewerRunThanMemoryAllows) {
  std::string run = "--workload poisson --rate 60 --duration 30 --json --policy ";
  for (const std::string policy : {"optimistic-engine", "optimistic-memory"}) {
    double any = Run(run + policy).Json()["kv_used_mean"].get<double>();
    double four = Run(run + policy + " --max-running 4").Json()["kv_used_mean"].get<double>();
    EXPECT_GT(four, 0);
    EXPECT_LT(four, any / 4) << policy;
  }
  EXPECT_THAT(Run(run + "kvern --max-running 4").errors,
              HasSubstr("--max-running: 4, not allowed"));
}

TEST_F(KvernSim, TenantsShareTheLoad) {
  Outcome outcome = Run("--workload poisson --rate 10 --shares 8,1,1" + std::string(kShort));
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  nlohmann::json tenants = outcome.Json()["per_tenant"];
  ASSERT_EQ(tenants.size(), 3u);
  EXPECT_GT(tenants["t0"]["offered_rps"].get<double>(),
            3 * tenants["t1"]["offered_rps"].get<double>());
}

TEST_F(KvernSim, TenantsComeFromAFile) {
  std::ofstream(TracePath()) << R"({"tenants": [{"name": "a", "weight": 3}, {"name": "b"}]})";
  std::string tenants = "--workload poisson --rate 10 --tenants " + TracePath();
  Outcome outcome = Run(tenants + kShort);
  ASSERT_EQ(outcome.exit_code, 0) << outcome.errors;
  nlohmann::json shown = outcome.Json()["per_tenant"];
  EXPECT_TRUE(shown.contains("a") && shown.contains("b")) << shown;
  Outcome bad = Run(tenants + " --shares 1,1,1");
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.errors, HasSubstr("--shares: 3 of them, allowed: one for each of the 2 tenants"));
  bad = Run("--rate 1 --tenants /nonexistent");
  EXPECT_EQ(bad.exit_code, 1);
  EXPECT_THAT(bad.errors, HasSubstr("--tenants: cannot open /nonexistent"));
}

TEST_F(KvernSim, TheTextSaysWhatItsFiguresMean) {
  std::string text = Run(Trace() + " --rate 4 --groups 2 --slo-ttft 900ms --duration 30").output;
  EXPECT_THAT(text, HasSubstr("capacity not measured (--load does, --rate does not)\n"));
  EXPECT_THAT(text, HasSubstr("completed, TTFT within 900 ms, TPOT within 60 ms\n"));
  EXPECT_THAT(text, ::testing::ContainsRegex("by group \\(2\\), least / mean / most: KV used "
                                             "0\\.[0-9]+ / 0\\.[0-9]+ / 0\\.[0-9]+, requests"));
  text = Run(Trace() + " --load 2 --duration 30").output;
  EXPECT_THAT(text,
              ::testing::ContainsRegex("offered [0-9.]+ requests/s \\([12]\\.[0-9]+ x capacity"));
  EXPECT_THAT(text, HasSubstr("requests/s: completed while some always wait"));
}

TEST_F(KvernSim, GroupsAddUpToTheWhole) {
  nlohmann::json json = Run(Trace() + " --rate 4 --groups 2" + kShort).Json();
  const nlohmann::json& used = json["by_group"]["kv_used"];
  EXPECT_EQ(json["by_group"]["groups"], 2);
  EXPECT_NEAR(used["mean"].get<double>(), json["kv_used_mean"].get<double>(), 1e-9);
  EXPECT_LE(used["least"].get<double>(), used["mean"].get<double>());
  EXPECT_GE(used["most"].get<double>(), used["mean"].get<double>());
  EXPECT_GT(json["by_group"]["running"]["least"].get<double>(), 0);
}

TEST_F(KvernSim, UsageErrorsNameTheOption) {
  const std::pair<const char*, const char*> kBad[] = {
      {"", "needs --load or --rate"},
      {"--rate 1 --load 1", "--load and --rate, not both"},
      {"--rate 0", "--rate: '0' is not a number from 0.001"},
      {"--rate 1 --policy lifo", "--policy: 'lifo', allowed: kvern"},
      {"--rate 1 --workload waves", "--workload: 'waves', allowed: poisson"},
      {"--rate 1 --faults cancel,fire", "--faults: 'fire', allowed: none, all, group-killed"},
      {"--rate 1 --max-tokens 5", "--max-tokens: '5' is not max_tokens:share"},
      {"--rate 1 --shares x", "--shares: 'x' is not a whole number"},
      {"--rate 1 --groups 0", "--groups: '0' is not a whole number from 1"},
      {"--rate 1 --bogus", "--bogus: unknown option"},
  };
  for (const auto& [arguments, error] : kBad) {
    Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << arguments;
    EXPECT_THAT(outcome.errors, HasSubstr(error)) << arguments;
  }
}

TEST_F(KvernSim, ABadTraceIsRefused) {
  std::ofstream(TracePath()) << "TIMESTAMP,ContextTokens,GeneratedTokens\n2023,1,1\n";
  Outcome outcome = Run(Trace() + " --rate 1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.errors, HasSubstr("line 2: TIMESTAMP is '2023'"));
  for (const char* path : {"", "/dev/zero", "/", "/nonexistent"}) {
    Outcome no_file = Run(std::string("--rate 1 --workload trace:") + path);
    EXPECT_EQ(no_file.exit_code, 1) << path;
    EXPECT_THAT(no_file.errors, HasSubstr("is not a regular file")) << path;
  }
}

TEST_F(KvernSim, ResultsThatCannotBeWrittenAreAnError) {
  for (const char* format : {"", " --json"}) {
    Outcome outcome = Run(std::string("--rate 1 --duration 1 >/dev/full") + format);
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.errors, HasSubstr("kvern-sim: writing the results: No space left"));
    EXPECT_THAT(outcome.errors, Not(HasSubstr("still fails with")));
  }
}

TEST_F(KvernSim, ACapacityOfNothingIsAnError) {
  Outcome outcome = Run("--load 1 --kv-tokens 16 --duration 10");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.output;
  EXPECT_THAT(outcome.errors, HasSubstr("--load: the capacity of this workload is 0"));
  Outcome one = Run("--load 1 --queue-entries 1 --duration 10 --json");
  EXPECT_EQ(one.exit_code, 0) << one.errors;
}

}  // namespace
}  // namespace kvern::sim
