// How kernels are launched: never with more threads than they say they take.
#include "gtest/gtest.h"
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/candidates.cuh"
#include "kernels/cuda/launch_kernel.cuh"
#include "kernels/cuda/rms_norm.cuh"

namespace kvern::gpu {
namespace {

template <typename Kernel, typename... Args>
concept Launchable = requires(Kernel* kernel, LaunchGrid grid, Args... args) {
  Launch("tested", kernel, grid, nullptr, args...);
};

// A kernel without a bound would be noticed nowhere but on a GPU.
static_assert(Launchable<void(simt::LaunchBound<128>, int), int>);
static_assert(!Launchable<void(int), int>);

// Of a grid whose blocks have `threads`; `kernel` would find nothing behind its arguments.
template <typename Kernel, typename... Args>
cudaError_t LaunchWith(unsigned threads, Kernel* kernel, const Args&... args) {
  return Launch("tested", kernel, {dim3(1), dim3(threads)}, nullptr, args...);
}

TEST(LaunchTest, RefusesMoreThreadsThanTheKernelTakes) {
  const AttentionArgs attention;
  EXPECT_EQ(LaunchWith(33, &AttentionKernel<Bf16, 16, 1>, attention, PageStrides{}),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchWith(129, &AttentionKernel<Bf16, 16, 4>, attention, PageStrides{}),
            cudaErrorInvalidValue);
  EXPECT_EQ(LaunchWith(kNormThreads + 1, &RmsNormKernel<1>, RmsNormArgs{}), cudaErrorInvalidValue);
  // Its bound is a GPU's as well.
  EXPECT_EQ(LaunchWith(kTopThreads + 1, &TopCandidatesKernel, LogitsArgs{}, 0,
                       static_cast<ScoredColumn*>(nullptr)),
            cudaErrorInvalidConfiguration);
}

TEST(LaunchTest, AKernelThatIsRunByHandLooksAtItsBlock) {
  EXPECT_DEATH(simt::RunGrid({dim3(1), dim3(kNormThreads + 32), 0, "by hand"},
                             [] { RmsNormKernel<1>({}, RmsNormArgs{}); }),
               "288 threads in a block of this kernel, at most 256");
}

}  // namespace
}  // namespace kvern::gpu
