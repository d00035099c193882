#include "router/io/log_limiter.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Fields = std::vector<std::pair<std::string, std::string>>;

LimitedLine Line(const std::string& error) {
  return {LogLevel::kWarning, "bad", {{"error", error}}};
}

TEST(LogLimiterTest, OneLinePerKindAndSecondWithACount) {
  LogLimiter limiter;
  EXPECT_TRUE(limiter.Add(0, "size", Line("first")).has_value());
  for (int i = 0; i < 1000; ++i) {
    EXPECT_FALSE(limiter.Add(10 + i, "size", Line(absl::StrCat("number ", i))).has_value());
  }
  EXPECT_TRUE(limiter.Add(20, "version", Line("another kind")).has_value());
  EXPECT_THAT(limiter.Due(kSecond - 1), IsEmpty());
  std::vector<LimitedLine> due = limiter.Due(kSecond);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_EQ(due[0].event, "bad");
  EXPECT_EQ(due[0].level, LogLevel::kWarning);
  EXPECT_EQ(due[0].fields, (Fields{{"error", "number 999"}, {"count", "1000"}}));
  // The second counts from this line on.
  EXPECT_FALSE(limiter.Add(kSecond + 1, "size", Line("again")).has_value());
  EXPECT_THAT(limiter.Due(2 * kSecond - 1), IsEmpty());
}

TEST(LogLimiterTest, ABurstIsWrittenAtOnce) {
  LogLimiter limiter;
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limiter.Add(i, "live", Line("early"), 3).has_value());
  EXPECT_FALSE(limiter.Add(3, "live", Line("fourth"), 3).has_value());
  EXPECT_EQ(limiter.Due(kSecond).size(), 1u);
  // What was held back is the first of its second.
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(limiter.Add(kSecond + i, "live", Line("later"), 3).has_value());
  }
  EXPECT_FALSE(limiter.Add(kSecond + 2, "live", Line("too many"), 3).has_value());
}

TEST(LogLimiterTest, OneThatWasHeldBackIsToldWhole) {
  LogLimiter limiter;
  limiter.Add(0, "size", Line("first"));
  limiter.Add(1, "size", Line("second"));
  std::vector<LimitedLine> due = limiter.Due(kSecond);
  ASSERT_EQ(due.size(), 1u);
  EXPECT_THAT(due[0].fields, ElementsAre(std::pair<std::string, std::string>("error", "second")));
}

TEST(LogLimiterTest, AfterASilentSecondLinesAreWrittenAtOnce) {
  LogLimiter limiter;
  limiter.Add(0, "size", Line("first"));
  EXPECT_THAT(limiter.Due(5 * kSecond), IsEmpty());
  EXPECT_TRUE(limiter.Add(kSecond, "size", Line("second")).has_value());
  // Not before what is held back, so that nothing is told out of order.
  limiter.Add(kSecond + 1, "size", Line("third"));
  EXPECT_FALSE(limiter.Add(3 * kSecond, "size", Line("fourth")).has_value());
  EXPECT_EQ(limiter.Due(3 * kSecond).size(), 1u);
}

}  // namespace
}  // namespace kvern
