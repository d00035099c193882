// Kernels of the emulator's tests: lambdas that run once per CUDA thread, with each kind of fiber.
#pragma once

#include <functional>
#include <string>

#include "gtest/gtest.h"
#include "kernels/simt/grid.h"
#include "kernels/simt/language.h"

namespace kvern::simt {

// Runs `thread_body` as the kernel "tested".
inline void RunKernel(dim3 grid, dim3 block, const std::function<void()>& thread_body,
                      size_t dynamic_shared_bytes = 0) {
  RunGrid({grid, block, dynamic_shared_bytes, "tested"}, thread_body);
}

// The number of the running thread in its block.
inline unsigned FlatThread() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// Each test of a suite of this type runs with each kind of fiber that this machine has.
class WithEachFiber : public testing::TestWithParam<FiberKind> {
 protected:
  void SetUp() override { UseFibers(GetParam()); }
  void TearDown() override { UseFibers(DefaultFiberKind()); }
};

inline std::vector<FiberKind> FiberKinds() {
  if (DefaultFiberKind() == FiberKind::kUcontext) return {FiberKind::kUcontext};
  return {FiberKind::kAssembly, FiberKind::kUcontext};
}

inline std::string FiberKindName(const testing::TestParamInfo<FiberKind>& info) {
  return info.param == FiberKind::kAssembly ? "Assembly" : "Ucontext";
}

}  // namespace kvern::simt

#define KVERN_INSTANTIATE_FIBERS(suite)                                                   \
  INSTANTIATE_TEST_SUITE_P(Fibers, suite, testing::ValuesIn(::kvern::simt::FiberKinds()), \
                           ::kvern::simt::FiberKindName)
