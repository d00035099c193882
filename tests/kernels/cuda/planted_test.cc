// Bugs planted in the kernels by rule, one at a time, and seen each: a thread that leaves out a
// collective, a tile that is used before it has landed, shared memory that is too small. (Barriers
// that all leave out: barrier_test.) The names that the kernels use are replaced here.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <tuple>
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

namespace kvern::gpu {
namespace {

#if defined(KVERN_SIMT_ASAN)
constexpr bool kFindsBounds = true;
#else
constexpr bool kFindsBounds = false;
#endif

const std::map<std::string, std::function<bool()>>& Programs() {
  static const std::map<std::string, std::function<bool()>> kPrograms = {
      {"attention, one warp", [] { return RunAttention<1>(0); }},
      {"attention, four warps", [] { return RunAttention<4>(0); }},
      {"norm", &RunRmsNorm},
      {"sum", &RunLogSumExp},
      {"candidates", &RunTopCandidates}};
  return kPrograms;
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

// Plants the bug at every such place of every program, in a child process: it must end with a
// report or with a wrong result. Returns the number of places.
size_t PlantEach(const std::string& kind) {
  size_t count = 0;
  for (const auto& [name, program] : Programs()) {
    for (const Place& place : PlacesOf(program, kind)) {
      ++count;
      SCOPED_TRACE(name + ": " + std::get<1>(place) + ":" + std::to_string(std::get<2>(place)));
      g_planted = place;
      EXPECT_DEATH(
          {
            if (!program()) std::fputs("wrong result\n", stderr);
            std::exit(1);
          },
          "wrong result|simt: kernel '|AddressSanitizer: use-after-poison");
    }
  }
  return count;
}

// The numbers are those of when this was written: places that are no longer met would not be
// missed otherwise.
TEST(Planted, AThreadThatLeavesOutACollective) { EXPECT_GE(PlantEach("collective"), 37u); }

TEST(Planted, AWaitThatIsTooShort) { EXPECT_GE(PlantEach("wait"), 2u); }

TEST(Planted, SharedMemoryThatIsTooSmall) {
  const char* const kReport = "not within an array";
  EXPECT_DEATH(RunAttention<1>(16), kReport);
  EXPECT_DEATH(RunAttention<4>(16), kReport);
  if (!kFindsBounds) return;
  EXPECT_GE(PlantEach("array"), 4u);
}

}  // namespace
}  // namespace kvern::gpu
