// Bugs planted in the kernels by rule, one at a time, and seen each: a thread that leaves out a
// collective, a tile that is used before it has landed, shared memory that is too small. (Barriers
// that all leave out, stages that are mistaken: barrier_test.) The names that the kernels use are
// replaced here.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/language.cuh"
#include "kernels/simt/sanitizers.h"

namespace kvern::gpu {
namespace {

// A place in a kernel: kind, file, line, and which of those on the line.
using Place = std::tuple<std::string, std::string, int, int>;

std::set<Place> g_seen;  // places that the threads of a program have reached
Place g_planted;         // where the bug is

bool IsPlanted(const char* kind, const simt::CallSite& site) {
  const simt::IgnoreAccesses not_of_the_kernel;
  const Place place = {kind, site.file, site.line, site.counter};
  if (threadIdx.x == 0) g_seen.insert(place);
  return place == g_planted;
}

// One thread of the first warp leaves it out.
bool IsLeftOut(const simt::CallSite& site) {
  return IsPlanted("collective", site) && threadIdx.x == 5;
}

// One group more stays under way.
template <int kPending>
void ShorterWait(simt::CallSite site = simt::CallSite::Here()) {
  if (IsPlanted("wait", site)) {
    CpAsyncWait<kPending + 1>();
  } else {
    CpAsyncWait<kPending>();
  }
}

// The last four bytes of the array are not asked for.
template <typename T, size_t kCount>
T (&SmallerArray(const void* key, simt::CallSite site))
[kCount] {
  const size_t missing = IsPlanted("array", {site.file, site.line, 0}) ? 4 : 0;
  return *static_cast<T(*)[kCount]>(
      simt::StaticShared(key, sizeof(T) * kCount - missing, alignof(T), site));
}

}  // namespace
}  // namespace kvern::gpu

#undef __syncthreads
#define __syncthreads() \
  (::kvern::gpu::IsLeftOut(KVERN_SIMT_SITE) ? void() : ::kvern::simt::SyncThreads(KVERN_SIMT_SITE))
#undef __syncwarp
#define __syncwarp() \
  (::kvern::gpu::IsLeftOut(KVERN_SIMT_SITE) ? void() : ::kvern::simt::SyncWarp(KVERN_SIMT_SITE))
#undef __shfl_sync
#define __shfl_sync(mask, value, ...)                                                            \
  (::kvern::gpu::IsLeftOut(KVERN_SIMT_SITE)                                                      \
       ? (value)                                                                                 \
       : ::kvern::simt::ShuffleValue(KVERN_SIMT_SITE, ::kvern::simt::Collective::kShuffle, mask, \
                                     value, __VA_ARGS__))
#undef __shfl_xor_sync
#define __shfl_xor_sync(mask, value, ...)                                                     \
  (::kvern::gpu::IsLeftOut(KVERN_SIMT_SITE)                                                   \
       ? (value)                                                                              \
       : ::kvern::simt::ShuffleValue(KVERN_SIMT_SITE, ::kvern::simt::Collective::kShuffleXor, \
                                     mask, value, __VA_ARGS__))
#undef __any_sync
#define __any_sync(mask, predicate)                                                                \
  (::kvern::gpu::IsLeftOut(KVERN_SIMT_SITE)                                                        \
       ? (predicate)                                                                               \
       : ::kvern::simt::Vote(KVERN_SIMT_SITE, ::kvern::simt::Collective::kAny, mask, predicate) != \
             0)
#define LdMatrixX4(...) \
  (IsLeftOut(::kvern::simt::CallSite::Here()) ? void() : LdMatrixX4(__VA_ARGS__))
#define LdMatrixX4Trans(...) \
  (IsLeftOut(::kvern::simt::CallSite::Here()) ? void() : LdMatrixX4Trans(__VA_ARGS__))
#define MmaBf16(...) (IsLeftOut(::kvern::simt::CallSite::Here()) ? void() : MmaBf16(__VA_ARGS__))
#define CpAsyncWait ShorterWait
#undef KVERN_SHARED
#define KVERN_SHARED(type, name, count) \
  static char name##_shared_key;        \
  type(&name)[count] = SmallerArray<type, count>(&name##_shared_key, KVERN_SIMT_SITE)

#include "tests/kernels/cuda/kernel_programs.h"

#if defined(KVERN_SIMT_TSAN)
// A kernel that has gone wrong need not end.
extern "C" const char* __tsan_default_options() { return "halt_on_error=1"; }
#endif

namespace kvern::gpu {
namespace {

#if defined(KVERN_SIMT_ASAN)
constexpr bool kFindsBounds = true;
#else
constexpr bool kFindsBounds = false;
#endif

#if defined(KVERN_SIMT_TSAN)
constexpr bool kFindsRaces = true;
#else
constexpr bool kFindsRaces = false;
#endif

const std::map<std::string, std::function<bool()>>& Programs() {
  static const std::map<std::string, std::function<bool()>> kPrograms = {
      {"attention, one warp", [] { return RunAttention<1>(0); }},
      {"attention, four warps", [] { return RunAttention<4>(0); }},
      {"norm", &RunRmsNorm},
      {"sum", &RunLogSumExp},
      {"gumbel", &RunGumbelMax},
      {"candidates", &RunTopCandidates}};
  return kPrograms;
}

// The programs and lines where what is planted breaks no rule of the language, so that the emulator
// has nothing to report and the result is wrong; true: the race checker sees it. A thread that
// leaves out the last barriers, or the last shuffles, has left, and nobody waits for it; what it
// would have given is undefined, which the emulator makes show. A wait may be for any copies.
const std::map<std::pair<std::string, std::string>, bool> kSeenByResult = {
    {{"attention, one warp", "CpAsyncWait<kStages - 2>();"}, true},
    {{"attention, four warps", "CpAsyncWait<kStages - 2>();"}, true},
    {{"norm", "KVERN_SYNC_THREADS(kBarrier);"}, true},
    {{"candidates", "KVERN_SYNC_THREADS(11);"}, true},
    {{"gumbel", "value = op(value, __shfl_xor_sync(0xffffffffu, value, offset));"}, false}};

// The text of the line, without its indentation.
std::string LineOf(const Place& place) {
  std::ifstream file("kernels/cuda" / std::filesystem::path(std::get<1>(place)).filename());
  std::string line;
  for (int i = 0; i < std::get<2>(place); ++i) std::getline(file, line);
  return line.substr(line.find_first_not_of(' '));
}

// The places of `kind` that the program reaches. Its result without a bug is right.
std::set<Place> PlacesOf(const std::function<bool()>& program, const std::string& kind) {
  g_planted = {};
  g_seen.clear();
  EXPECT_TRUE(program());
  std::set<Place> places;
  for (const Place& place : g_seen) {
    if (std::get<0>(place) == kind) places.insert(place);
  }
  return places;
}

class Planted : public testing::Test {
 protected:
  // A fork with ThreadSanitizer's fibers would not look on. It takes its time, too: it is shown
  // only what the others do not see.
  void SetUp() override {
    if (kFindsRaces) GTEST_FLAG_SET(death_test_style, "threadsafe");
  }

  // Plants the bug at every such place of every program, in a child process: it must end with a
  // report, or with a wrong result where that is known.
  static void PlantEach(const std::string& kind) {
    for (const auto& [name, program] : Programs()) {
      for (const Place& place : PlacesOf(program, kind)) {
        const std::string line = LineOf(place);
        const auto known = kSeenByResult.find({name, line});
        const bool is_known = known != kSeenByResult.end();
        if (kFindsRaces && !(is_known && known->second)) continue;
        SCOPED_TRACE(name + ": " + std::get<1>(place) + ": " + line);
        g_planted = place;
        EXPECT_DEATH(
            {
              if (!program()) std::fputs("wrong result\n", stderr);
              std::exit(1);
            },
            kFindsRaces ? "ThreadSanitizer: data race"
            : is_known  ? "wrong result"
                        : "simt: kernel '|AddressSanitizer: use-after-poison");
      }
    }
  }
};

TEST_F(Planted, AThreadThatLeavesOutACollective) { PlantEach("collective"); }

TEST_F(Planted, AWaitThatIsTooShort) { PlantEach("wait"); }

TEST_F(Planted, SharedMemoryThatIsTooSmall) {
  const char* const kReport = "not within an array";
  EXPECT_DEATH(RunAttention<1>(16), kReport);
  EXPECT_DEATH(RunAttention<4>(16), kReport);
  if (kFindsBounds) PlantEach("array");
}

// File names and contents of the kernels.
std::map<std::string, std::string> Sources() {
  std::map<std::string, std::string> sources;
  for (const auto& entry : std::filesystem::directory_iterator("kernels/cuda")) {
    if (entry.path().extension() != ".cuh" || entry.path().filename() == "language.cuh") continue;
    std::ifstream file(entry.path());
    sources[entry.path().filename()] = std::string(std::istreambuf_iterator<char>(file), {});
  }
  return sources;
}

std::set<std::string> Matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::set<std::string> found;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    found.insert((*at)[1]);
  }
  return found;
}

const char* const kCollective =
    "(__\\w+_sync|__syncthreads|__syncwarp|KVERN_SYNC_\\w+|LdMatrix\\w+|MmaBf16)\\(";

// Every place where the sources have something to plant at is reached by a program: so its name is
// replaced here, too.
TEST(PlantedSources, EveryPlaceIsReached) {
  const std::map<std::string, std::string> patterns = {
      {"collective", kCollective}, {"wait", "(CpAsyncWait)<"}, {"array", "(KVERN_SHARED)\\("}};
  std::set<std::pair<std::string, std::string>> lines;  // of each program
  for (const auto& [kind, pattern] : patterns) {
    std::set<std::pair<std::string, int>> reached;
    for (const auto& [name, program] : Programs()) {
      for (const Place& place : PlacesOf(program, kind)) {
        reached.insert({std::filesystem::path(std::get<1>(place)).filename(), std::get<2>(place)});
        lines.insert({name, LineOf(place)});
      }
    }
    for (const auto& [file, text] : Sources()) {
      std::istringstream stream(text);
      std::string line;
      for (int number = 1; std::getline(stream, line); ++number) {
        if (Matches(line, pattern).empty()) continue;
        EXPECT_TRUE(reached.contains({file, number})) << file << ":" << number << ": " << line;
      }
    }
  }
  for (const auto& [known, is_race] : kSeenByResult) {
    EXPECT_TRUE(lines.contains(known)) << known.second;
  }
}

// Whether the file or one that it includes has a collective.
bool HasCollective(const std::map<std::string, std::string>& sources, const std::string& file) {
  const auto source = sources.find(file);
  if (source == sources.end()) return false;
  if (!Matches(source->second, kCollective).empty()) return true;
  for (const std::string& included :
       Matches(source->second, "#include \"kernels/cuda/(\\w+\\.cuh)\"")) {
    if (HasCollective(sources, included)) return true;
  }
  return false;
}

// And every kernel that might reach one, in a function that another kernel uses as well, is run.
TEST(PlantedSources, EveryKernelWithACollectiveHasAProgram) {
  std::ifstream file("tests/kernels/cuda/kernel_programs.h");
  const std::string programs(std::istreambuf_iterator<char>(file), {});
  const std::map<std::string, std::string> sources = Sources();
  std::set<std::string> kernels;
  for (const auto& [name, text] : sources) {
    if (!HasCollective(sources, name)) continue;
    kernels.merge(Matches(text, "\nKVERN_KERNEL\\([^,]+, (\\w+)"));
  }
  EXPECT_TRUE(kernels.contains("GumbelMaxKernel"));
  EXPECT_EQ(kernels, Matches(programs, "(\\w+Kernel)[<(]"));
}

}  // namespace
}  // namespace kvern::gpu
