// The stacks of one warp's fibers: one mapping, a guard page below each stack.
#pragma once

#include <cstddef>

#include "kernels/simt/sanitizers.h"

namespace kvern::simt {

class WarpStacks {
 public:
  // What a kernel's locals, and a test's assertion within a kernel, need many times over. Only the
  // pages that are touched cost memory. Instrumented frames are larger.
#if defined(KVERN_SIMT_ASAN) || defined(KVERN_SIMT_TSAN)
  static constexpr size_t kBytes = size_t{256} << 10;
#else
  static constexpr size_t kBytes = size_t{64} << 10;
#endif

  // For the warp with this number in its block. Aborts when there is no memory.
  explicit WarpStacks(unsigned warp);
  ~WarpStacks();
  WarpStacks(const WarpStacks&) = delete;
  WarpStacks& operator=(const WarpStacks&) = delete;

  struct Range {
    void* start;
    size_t bytes;
  };
  Range Of(unsigned lane) const;

 private:
  char* mapping_ = nullptr;
  unsigned warp_;
};

}  // namespace kvern::simt
