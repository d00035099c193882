// Every barrier of the kernels is needed, and the race checker sees it: each is left out in turn.
// And every stage of a ring is the right one: each is taken for the next one in turn. The kernels
// are compiled here with a barrier to leave out or a stage to mistake, and run by the emulator
// directly.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <regex>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvern::gpu {
int g_dropped_barrier = 0;  // numbers begin at 1
int g_wrong_stage = 0;      // these, too
}  // namespace kvern::gpu
#define KVERN_DROP_BARRIER ::kvern::gpu::g_dropped_barrier
#define KVERN_WRONG_STAGE ::kvern::gpu::g_wrong_stage

#include "kernels/simt/sanitizers.h"
#include "tests/kernels/cuda/kernel_programs.h"

#if defined(KVERN_SIMT_TSAN)
// A kernel that has gone wrong need not end.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace kvern::gpu {
namespace {

#if defined(KVERN_SIMT_TSAN)
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif

// Barrier and the program that needs it.
const std::map<int, std::function<bool()>>& Programs() {
  static const std::map<int, std::function<bool()>> kPrograms = {
      {1, [] { return RunAttention<1>(0); }},
      {2, [] { return RunAttention<4>(0); }},
      {3, &RunRmsNorm},
      {4, &RunLogSumExp},
      {5, &RunLogSumExp},
      {6, &RunTopCandidates},
      {7, &RunTopCandidates},
      {8, &RunTopCandidates},
      {9, &RunTopCandidates},
      {10, &RunTopCandidates},
      {11, &RunTopCandidates}};
  return kPrograms;
}

constexpr int kWrongStages = 4;  // numbers 1 to this

// The numbers that follow `marked` in the kernels, ascending. Lines in which `bare` is found have
// something that is not marked.
std::vector<int> NumbersInSources(const std::string& marked, const std::string& bare) {
  const std::regex number(marked);
  const std::regex unmarked(bare);
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("kernels/cuda")) {
    if (entry.path().extension() != ".cuh" || entry.path().filename() == "language.cuh") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      for (std::sregex_iterator at(line.begin(), line.end(), number), end; at != end; ++at) {
        found.push_back(std::stoi((*at)[1]));
      }
      line = std::regex_replace(line, number, "");
      EXPECT_FALSE(std::regex_search(line, unmarked)) << entry.path() << ": " << line;
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// No barrier is written in a way that this test would not know of.
TEST(BarrierSources, AllOfTheSourcesAreInThisTest) {
  std::vector<int> listed;
  for (const auto& [number, program] : Programs()) listed.push_back(number);
  EXPECT_EQ(NumbersInSources("(?:KVERN_SYNC_THREADS\\(|KVERN_SYNC_WARP\\(|BlockReduce<)(\\d+)",
                             "__sync(threads|warp)\\("),
            listed);
}

// Nor a stage: the next one is always reckoned modulo their number.
TEST(StageSources, AllOfTheSourcesAreInThisTest) {
  std::vector<int> listed(kWrongStages);
  std::iota(listed.begin(), listed.end(), 1);
  EXPECT_EQ(NumbersInSources("KVERN_STAGE\\((\\d+), .*\\)", "% kStages"), listed);
}

class Barriers : public ::testing::TestWithParam<int> {
 protected:
  // A fork with ThreadSanitizer's fibers would not look on.
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_P(Barriers, IsNeededAndItsLossIsSeen) {
  const std::function<bool()>& program = Programs().at(GetParam());
  // With all barriers: right, and nothing to report, which would end the test.
  EXPECT_TRUE(program());
  if (!kFindsRaces) return;
  EXPECT_EXIT(
      {
        g_dropped_barrier = GetParam();
        program();
        std::exit(0);
      },
      ::testing::ExitedWithCode(66), "ThreadSanitizer: data race");
}

INSTANTIATE_TEST_SUITE_P(Each, Barriers, ::testing::Range(1, 12));

class Stages : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }

  // Copies into a stage that is still read, and reads of one that is still copied into, are seen
  // both ways; the first copies, where nothing is read from, only by the result.
  template <int kWarps>
  void ExpectSeen() {
    EXPECT_TRUE(RunAttention<kWarps>(0));
    if (!kFindsRaces || GetParam() == 1) {
      g_wrong_stage = GetParam();
      EXPECT_FALSE(RunAttention<kWarps>(0));
      g_wrong_stage = 0;
      return;
    }
    EXPECT_EXIT(
        {
          g_wrong_stage = GetParam();
          RunAttention<kWarps>(0);
          std::exit(0);
        },
        ::testing::ExitedWithCode(66), "ThreadSanitizer: data race");
  }
};

TEST_P(Stages, TheNextOneIsSeenToBeWrong) {
  ExpectSeen<1>();
  ExpectSeen<4>();
}

INSTANTIATE_TEST_SUITE_P(Each, Stages, ::testing::Range(1, kWrongStages + 1));

}  // namespace
}  // namespace kvern::gpu
