#include "kernels/simt/stacks.h"

#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>

namespace kvern::simt {
namespace {

constexpr size_t kLanes = 32;
constexpr size_t kGuardBytes = 4096;
constexpr size_t kStride = WarpStacks::kBytes + kGuardBytes;

// Stacks whose tops are whole pages apart would all use the same few sets of the first-level cache:
// each begins a few cache lines further down than the one before, within a page.
constexpr size_t kColours = 64;
constexpr size_t kColourStep = 5;  // Odd, so that 64 threads have 64 colours.
constexpr size_t kCacheLine = 64;

}  // namespace

WarpStacks::WarpStacks(unsigned warp) : warp_(warp) {
  void* mapping = mmap(nullptr, kLanes * kStride, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    std::perror("simt: no memory for the stacks of a warp");
    std::abort();
  }
  mapping_ = static_cast<char*>(mapping);
  for (size_t lane = 0; lane < kLanes; ++lane) {
    if (mprotect(mapping_ + lane * kStride, kGuardBytes, PROT_NONE) != 0) {
      std::perror("simt: no guard page below a stack");
      std::abort();
    }
  }
}

WarpStacks::~WarpStacks() {
  UnpoisonMemory(mapping_, kLanes * kStride);
  munmap(mapping_, kLanes * kStride);
}

WarpStacks::Range WarpStacks::Of(unsigned lane) const {
  size_t thread = warp_ * kLanes + lane;
  size_t colour = thread * kColourStep % kColours;
  return {mapping_ + lane * kStride + kGuardBytes, kBytes - colour * kCacheLine};
}

}  // namespace kvern::simt
