// A group whose ranks are processes, each with a GPU of its own, as the service has them.
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/golden/model_group.h"
#include "tests/golden/tested_gpu.h"
#include "worker/comm/shm.h"

namespace kvern {
namespace {

constexpr char kModel[] = "llama_gqa";
constexpr char kPath[] = "tests/golden/tiny/llama_gqa";
// What rank 1's process is told: where rank 0 is, and NCCL's unique id in hexadecimal digits.
constexpr char kRendezvous[] = "KVERN_TEST_RENDEZVOUS";
constexpr char kCommId[] = "KVERN_TEST_COMM_ID";
constexpr int kSteps = 8;
constexpr uint32_t kTop = 20;
constexpr Duration kMeetTimeout = 30 * kSecond;

GroupOptions Ranks(int world) {
  GroupOptions options;
  options.world = world;
  options.gpu = &TestedGpu();
  options.batch_invariant = true;  // the order of sums is then not NCCL's to choose
  options.kv = DType::kBf16;
  options.max_tokens = 128;
  return options;
}

std::vector<Generated> Answers(ModelGroup& group) {
  std::vector<std::vector<uint32_t>> prompts;
  for (const GoldenCase& golden : TinyCases(kModel)) prompts.push_back(golden.ids);
  RunOptions run;
  run.steps = kSteps;
  run.logprobs = kTop;  // of all ranks' columns
  return group.Generate(prompts, run);
}

// Runs TheOtherRank in another process.
pid_t StartOther(const std::string& rendezvous, const std::vector<uint8_t>& id) {
  const std::string hex = absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(id.data()), id.size()));
  setenv(kRendezvous, rendezvous.c_str(), 1);
  setenv(kCommId, hex.c_str(), 1);
  char program[] = "/proc/self/exe";
  char filter[] = "--gtest_filter=TwoProcesses.DISABLED_TheOtherRank";
  char disabled[] = "--gtest_also_run_disabled_tests";
  char* const arguments[] = {program, filter, disabled, nullptr};
  pid_t process = -1;
  EXPECT_EQ(posix_spawn(&process, program, nullptr, nullptr, arguments, environ), 0);
  return process;
}

// No test by itself: what the process of rank 1 does.
TEST(TwoProcesses, DISABLED_TheOtherRank) {
  const char* rendezvous = std::getenv(kRendezvous);
  const char* hex = std::getenv(kCommId);
  if (rendezvous == nullptr || hex == nullptr) GTEST_SKIP() << "nobody waits for this rank";
  const std::string id = absl::HexStringToBytes(hex);
  auto control = ConnectShm(rendezvous, 1, 2, kMeetTimeout);
  ASSERT_TRUE(control.ok()) << control.status();
  auto group =
      ModelGroup::LoadOne(kPath, Ranks(2), *std::move(control),
                          std::span(reinterpret_cast<const uint8_t*>(id.data()), id.size()));
  ASSERT_NE(group, nullptr);
  Answers(*group);
}

std::vector<Generated> AnswersOfTwoProcesses() {
  auto host = ShmHost::Listen(2);
  auto id = TestedGpu().NewCommId();
  EXPECT_TRUE(host.ok() && id.ok()) << host.status() << id.status();
  if (!host.ok() || !id.ok()) return {};
  const pid_t other = StartOther((*host)->rendezvous(), *id);
  std::vector<Generated> answers;
  if (auto control = (*host)->Accept(kMeetTimeout); control.ok()) {
    auto group = ModelGroup::LoadOne(kPath, Ranks(2), *std::move(control), *id);
    if (group != nullptr) answers = Answers(*group);
  } else {
    ADD_FAILURE() << control.status();
  }
  int status = -1;
  EXPECT_EQ(waitpid(other, &status, 0), other);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  return answers;
}

// How far a log-probability may be from one rank's, whose sums are not rounded in parts: as far as
// bounds of emulated_models_test let a logit be from the reference.
float FarthestFromOneRank() { return kEmulated ? 0.3f : 1.0f; }

TEST(TwoProcesses, SayWhatTwoThreadsSayAndNearlyWhatOneRankSays) {
  const std::vector<Generated> answers = AnswersOfTwoProcesses();
  std::vector<Generated> one;
  std::vector<Generated> two;
  for (std::vector<Generated>* expected : {&one, &two}) {
    auto group = ModelGroup::Load(kPath, Ranks(expected == &one ? 1 : 2));
    ASSERT_NE(group, nullptr);
    *expected = Answers(*group);
    ASSERT_EQ(answers.size(), expected->size());
  }
  for (size_t i = 0; i < answers.size(); ++i) {
    EXPECT_EQ(answers[i].tokens, two[i].tokens) << i;
    ASSERT_EQ(answers[i].logprobs.size(), size_t{kSteps}) << i;
    EXPECT_EQ(answers[i].logprobs, two[i].logprobs) << i;
    // Until one draws another token; the k-th best moves no farther than any.
    for (uint32_t k = 0; k < kTop; ++k) {
      EXPECT_NEAR(answers[i].logprobs[0].top[k].second, one[i].logprobs[0].top[k].second,
                  FarthestFromOneRank())
          << i << ", " << k;
    }
  }
}

}  // namespace
}  // namespace kvern
