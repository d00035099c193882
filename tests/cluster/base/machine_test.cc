#include "cluster/base/machine.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>
#include <vector>

namespace kvern {
namespace {

TEST(FreedMemory, IsGivenBackFromBelowWhatLasts) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer has an allocator of its own";
#endif
  KeepFreedMemory();
  const uint64_t before = ResidentMemory();
  // As messages come: on another thread, and something small among them stays.
  constexpr size_t kObjects = 512;
  constexpr size_t kBytes = 1 << 20;
  std::vector<std::vector<char>> large(kObjects);
  std::vector<std::unique_ptr<int>> lasting(kObjects);
  std::thread([&] {
    for (size_t i = 0; i < kObjects; ++i) {
      large[i].assign(kBytes, 'x');
      lasting[i] = std::make_unique<int>(1);
    }
  }).join();
  large.clear();
  ASSERT_GT(ResidentMemory(), before + kObjects * kBytes / 2) << "free, but not given back";
  FreedMemory freed;
  freed.GiveBack(0);
  EXPECT_LT(ResidentMemory(), before + kObjects * kBytes / 8);
  EXPECT_EQ(*lasting.back(), 1);
}

}  // namespace
}  // namespace kvern
