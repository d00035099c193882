// Every barrier of the kernels is needed, and the race checker sees it: each is left out in turn.
// The kernels are compiled here with a barrier to leave out, and run by the emulator directly.
#include <algorithm>
#include <cmath>
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

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/log_sum_exp.cuh"
#include "kernels/cuda/rms_norm.cuh"
#include "kernels/simt/grid.h"
#include "kernels/simt/sanitizers.h"

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

// Each program runs one kernel and returns whether the result is right. Inputs are such that it is
// known without a reference.

// Keys are all alike, values are 1: so is the result, whatever the weights.
template <int kWarps>
bool RunAttention() {
  constexpr int32_t kDim = 16;
  constexpr int32_t kTokens = kWarps == 1 ? 1 : 40;
  constexpr int32_t kKeys = 150;
  alignas(16) static Bf16 pages[10 * 2 * 16 * kDim];
  constexpr size_t kElements = static_cast<size_t>(kTokens) * kDim;
  alignas(16) static Bf16 q[kElements];
  alignas(16) static Bf16 out[kElements];
  std::fill(std::begin(pages), std::end(pages), ToBf16(1));
  std::fill(std::begin(q), std::end(q), ToBf16(1));
  const uint32_t table[10] = {3, 1, 9, 0, 2, 4, 8, 6, 7, 5};
  const AttentionItem item = {0, kTokens, kKeys - kTokens, 0, 0, 1, 0, 0};
  const AttentionCounts counts = {1, 1, 0, 0};
  AttentionArgs args;
  args.q = q;
  args.q_stride = args.out_stride = kDim;
  args.out = out;
  args.q_heads = 1;
  args.pages = {pages, KvType::kBf16, 1, 1, kDim};
  args.block_tables = table;
  args.narrow = args.wide = &item;
  args.counts = &counts;
  const PageStrides strides = StridesOf(args.pages, 0);
  simt::RunGrid({dim3(1), dim3(32 * kWarps), kStages * StageBytes(kDim), "Attention"},
                [&] { AttentionKernel<Bf16, kDim, kWarps>(args, strides); });
  return std::all_of(std::begin(out), std::end(out), [](Bf16 x) { return ToFloat(x) == 1; });
}

bool RunRmsNorm() {
  constexpr int32_t kCols = 512;
  alignas(16) static float x[kCols];
  alignas(16) static float weight[kCols];
  alignas(16) static Bf16 out[kCols];
  std::fill(std::begin(x), std::end(x), 2.0f);
  std::fill(std::begin(weight), std::end(weight), 3.0f);
  RmsNormArgs args = {x, nullptr, weight, 0, 1, kCols, out};
  simt::RunGrid({dim3(1), dim3(kCols / 8), 0, "RmsNorm"}, [&] { RmsNormKernel<1>(args); });
  return std::all_of(std::begin(out), std::end(out), [](Bf16 o) { return ToFloat(o) == 3; });
}

bool RunLogSumExp() {
  std::vector<float> logits(1000, 0.5f);
  const SampleRow request;
  const LogitsArgs args = {logits.data(), 1000, 1000, &request, 1};
  SumPart part;
  simt::RunGrid({dim3(1), dim3(kSumThreads), 0, "LogSumExp"},
                [&] { LogSumExpKernel(args, &part); });
  return part.max == 0.5f && part.sum == 1000;
}

// Half of the logits are alike, so that the search goes on to the columns.
bool RunTopCandidates() {
  constexpr int32_t kColumns = 1500;
  constexpr int32_t kCount = 40;
  std::vector<float> logits(kColumns, 1.0f);
  for (size_t i = 0; i < 10; ++i) logits[100 + 70 * i] = 5 + static_cast<float>(i);
  const SampleRow request;
  const LogitsArgs args = {logits.data(), kColumns, kColumns, &request, 1};
  std::vector<ScoredColumn> out(kCount);
  simt::RunGrid({dim3(1), dim3(kTopThreads), 0, "TopCandidates"},
                [&] { TopCandidatesKernel(args, kCount, out.data()); });
  for (uint32_t i = 0; i < kCount; ++i) {
    const uint32_t expected = i < 10 ? 100 + 70 * (9 - i) : i - 10;
    if (out[i].column != expected) return false;
  }
  return true;
}

// Barrier and the program that needs it.
const std::map<int, std::function<bool()>>& Programs() {
  static const std::map<int, std::function<bool()>> kPrograms = {
      {1, &RunAttention<1>},   {2, &RunAttention<4>},  {3, &RunRmsNorm},
      {4, &RunLogSumExp},      {5, &RunLogSumExp},     {6, &RunTopCandidates},
      {7, &RunTopCandidates},  {8, &RunTopCandidates}, {9, &RunTopCandidates},
      {10, &RunTopCandidates}, {11, &RunTopCandidates}};
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
