#include "cluster/launch/group.h"

#include <algorithm>
#include <string>
#include <vector>

#include "cluster/base/machine.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

TEST(RestartPolicy, DoublesUpToTheLongestAndForgetsAfterALongLife) {
  RestartPolicy policy;
  Time now = kSecond;
  std::vector<Duration> waits;
  for (int i = 0; i < 9; ++i) {
    Time next = policy.NextStart(now, now + kMillisecond);
    waits.push_back((next - now - kMillisecond) / kMillisecond);
  }
  EXPECT_EQ(waits, (std::vector<Duration>{100, 200, 400, 800, 1600, 3200, 6400, 10'000, 10'000}));
  EXPECT_EQ(policy.quick_deaths(), 9);
  EXPECT_EQ(policy.NextStart(now, now + RestartPolicy::kLongLife),
            now + RestartPolicy::kLongLife + RestartPolicy::kFirstBackoff);
  EXPECT_EQ(policy.quick_deaths(), 1);
}

bool Has(const std::vector<std::string>& argv, const std::string& option,
         const std::string& value) {
  for (size_t i = 0; i + 1 < argv.size(); ++i) {
    if (argv[i] == option) return argv[i + 1] == value;
  }
  return false;
}

LaunchConfig Parse(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "kvern-launch");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return ParseLaunchConfig(static_cast<int>(argv.size()), argv.data());
}

// A rank joins when it has loaded its model, and nobody but the operator knows how long that takes.
TEST(Group, MayLoadForAsLongAsItTakesUnlessALimitIsGiven) {
  for (const char* limit : {"", "5s"}) {
    std::vector<std::string> arguments = {"--model", "none.gguf"};
    if (*limit != '\0') arguments.insert(arguments.end(), {"--join-timeout", limit});
    const LaunchConfig config = Parse(arguments);
    Group group(0);
    ASSERT_TRUE(group.Start(config, "tcp://127.0.0.1:9", 1, kSecond).ok());
    EXPECT_EQ(group.hung_at(), *limit == '\0' ? kTimeMax : 6 * kSecond);
    group.HeardOf();
    EXPECT_EQ(group.hung_at(), kTimeMax);
    group.Kill();
    while (group.ranks()[0].process.running()) group.Reap(/*comes_back=*/true, kSecond);
  }
}

TEST(LaunchConfig, SplitsOptionsByWhoseTheyAre) {
  LaunchConfig config =
      Parse({"--model", "m.gguf", "--tp", "2", "--queue-entries", "7", "--kv-blocks", "64",
             "--threads", "3", "--model-name", "small", "--batch-invariant"});
  std::vector<std::string> router = RouterArguments(config);
  std::vector<std::string> worker =
      WorkerArguments(config, {"group-1", 99, 1}, "tcp://127.0.0.1:9");
  EXPECT_TRUE(Has(router, "--queue-entries", "7"));
  EXPECT_TRUE(Has(router, "--model-name", "small"));
  EXPECT_TRUE(Has(router, "--expect-groups", "1"));
  EXPECT_TRUE(Has(worker, "--kv-blocks", "64"));
  EXPECT_TRUE(Has(worker, "--threads", "3"));
  EXPECT_TRUE(Has(worker, "--model-name", "small"));
  EXPECT_TRUE(Has(worker, "--group-incarnation", "99"));
  EXPECT_TRUE(Has(worker, "--rank", "1"));
  EXPECT_TRUE(Has(worker, "--world", "2"));
  for (const char* other : {"--queue-entries", "--kv-memory"}) {
    EXPECT_EQ(std::count(worker.begin(), worker.end(), other), 0) << other;
  }
  EXPECT_EQ(std::count(router.begin(), router.end(), "--kv-blocks"), 0);
}

TEST(LaunchConfig, DefaultsShareTheMachineAmongRanks) {
  LaunchConfig config = Parse({"--model", "m.gguf", "--tp", "2", "--replicas", "3"});
  std::vector<std::string> worker = WorkerArguments(config, {"group-0", 1, 0}, "tcp://127.0.0.1:9");
  EXPECT_TRUE(Has(worker, "--threads", std::to_string(DefaultThreads(6))));
  EXPECT_TRUE(Has(worker, "--host-ranks", "6"));
  EXPECT_EQ(std::count(worker.begin(), worker.end(), "--kv-memory"), 0);  // a GPU has its own
  EXPECT_GE(DefaultThreads(1'000'000), 1);
  EXPECT_EQ(DefaultKvMemory(6), DefaultKvMemory(1) / 6);
}

}  // namespace
}  // namespace kvern
