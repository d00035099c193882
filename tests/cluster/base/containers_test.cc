#include <string>

#include "cluster/base/id_map.h"
#include "cluster/base/ring.h"
#include "cluster/base/rng.h"
#include "cluster/base/status.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

TEST(RingTest, KeepsOrderAcrossWrapAndGrowth) {
  Ring<int> ring(40);
  int pushed = 0;
  int popped = 0;
  for (int round = 0; round < 30; ++round) {
    for (int i = 0; i < 5 && !ring.full(); ++i) ring.PushBack(pushed++);
    for (int i = 0; i < 3 && !ring.empty(); ++i) EXPECT_EQ(ring.PopFront(), popped++);
  }
  EXPECT_EQ(ring.size(), static_cast<size_t>(pushed - popped));
  while (!ring.empty()) EXPECT_EQ(ring.PopFront(), popped++);
  EXPECT_EQ(popped, pushed);
}

TEST(RingTest, RemoveAtKeepsTheOthersInOrder) {
  Ring<std::string> ring(4);
  for (const char* text : {"x", "a", "b", "c"}) ring.PushBack(text);
  ring.PopFront();
  ring.PushBack("d");  // Wraps around.
  EXPECT_EQ(ring.RemoveAt(1), "b");
  EXPECT_EQ(ring[0], "a");
  EXPECT_EQ(ring[1], "c");
  EXPECT_EQ(ring[2], "d");
  EXPECT_EQ(ring.size(), 3u);
}

TEST(RingDeathTest, OverflowIsOurBug) {
  Ring<int> ring(1);
  ring.PushBack(1);
  EXPECT_DEATH(ring.PushBack(2), "ring of 1");
}

TEST(IdMapTest, FindsInsertsErases) {
  IdMap<uint64_t, std::string> map;
  map.Insert(7, "seven");
  EXPECT_EQ(*map.Find(7), "seven");
  EXPECT_EQ(map.Find(8), nullptr);
  EXPECT_TRUE(map.Erase(7));
  EXPECT_FALSE(map.Erase(7));
  EXPECT_TRUE(map.empty());
}

TEST(RngTest, FollowsFromTheSeedAndStaysInBounds) {
  Rng a(42);
  Rng b(42);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(a.Next(), b.Next());
    int64_t value = a.Between(-3, 3);
    EXPECT_EQ(value, b.Between(-3, 3));
    EXPECT_GE(value, -3);
    EXPECT_LE(value, 3);
  }
}

TEST(RngTest, ForksDoNotShiftTheirParent) {
  Rng parent(1);
  Rng untouched(1);
  Rng child = parent.Fork(5);
  child.Next();
  EXPECT_EQ(parent.Next(), untouched.Next());
  EXPECT_NE(Rng(1).Fork(5).Next(), Rng(1).Fork(6).Next());
}

TEST(RngTest, UnitIntervalIsOpen) {
  EXPECT_GT(UnitInterval(0), 0.0);
  EXPECT_LT(UnitInterval(~0ull), 1.0);
}

TEST(StatusTest, ErrnoKeepsItsKind) {
  EXPECT_TRUE(absl::IsNotFound(ErrnoStatus("open /x", 2)));
  EXPECT_EQ(ErrnoStatus("open /x", 2).message(), "open /x: No such file or directory");
}

}  // namespace
}  // namespace kvern
