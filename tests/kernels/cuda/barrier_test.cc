// Every barrier of the kernels is needed, and the race checker sees it: each is left out in turn.
// The kernels are compiled here with a barrier to leave out, and run by the emulator directly.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvern::gpu {
int g_dropped_barrier = 0;  // numbers begin at 1
}  // namespace kvern::gpu
#define KVERN_DROP_BARRIER ::kvern::gpu::g_dropped_barrier

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

// No barrier is written in a way that this test would not know of.
TEST(BarrierSources, AllOfTheSourcesAreInThisTest) {
  const std::regex numbered("(KVERN_SYNC_THREADS|KVERN_SYNC_WARP)\\((\\d+)\\)|BlockReduce<(\\d+)>");
  const std::regex bare("__sync(threads|warp)\\(");
  std::vector<int> found;
  for (const auto& entry : std::filesystem::directory_iterator("kernels/cuda")) {
    if (entry.path().extension() != ".cuh" || entry.path().filename() == "language.cuh") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      EXPECT_FALSE(std::regex_search(line, bare)) << entry.path() << ": " << line;
      for (std::sregex_iterator at(line.begin(), line.end(), numbered), end; at != end; ++at) {
        found.push_back(std::stoi((*at)[2].matched ? (*at)[2].str() : (*at)[3].str()));
      }
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<int> listed;
  for (const auto& [number, program] : Programs()) listed.push_back(number);
  EXPECT_EQ(found, listed);
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

}  // namespace
}  // namespace kvern::gpu
