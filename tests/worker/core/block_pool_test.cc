#include "worker/core/block_pool.h"

#include <gtest/gtest.h>

namespace kvern {
namespace {

TEST(BlockPool, HandsOutEveryBlockOnce) {
  BlockPool pool(3);
  EXPECT_EQ(pool.Allocate(), 0u);
  EXPECT_EQ(pool.Allocate(), 1u);
  EXPECT_EQ(pool.Allocate(), 2u);
  EXPECT_EQ(pool.used(), 3u);
  pool.Audit();
  EXPECT_DEATH(pool.Allocate(), "used\\(\\)");
}

TEST(BlockPool, FreesABlockWithItsLastHolder) {
  BlockPool pool(2);
  BlockId block = pool.Allocate();
  pool.Ref(block);
  EXPECT_EQ(pool.refs(block), 2u);
  pool.Unref(block);
  EXPECT_EQ(pool.used(), 1u);
  pool.Unref(block);
  EXPECT_EQ(pool.used(), 0u);
  EXPECT_DEATH(pool.Unref(block), "block 0");
  EXPECT_DEATH(pool.Ref(block), "block 0");
  EXPECT_DEATH(pool.Unref(1), "block 1");  // never handed out
  pool.Audit();
}

TEST(BlockPool, ReusesTheBlockFreedLast) {
  BlockPool pool(3);
  BlockId first = pool.Allocate();
  BlockId second = pool.Allocate();
  pool.Unref(second);
  pool.Unref(first);
  EXPECT_EQ(pool.Allocate(), first);
  EXPECT_EQ(pool.Allocate(), second);
  EXPECT_EQ(pool.Allocate(), 2u);
}

}  // namespace
}  // namespace kvern
