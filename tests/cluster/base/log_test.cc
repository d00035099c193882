#include "cluster/base/log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace kvern {
namespace {

// stderr of one Log call.
std::string Logged(LogFormat format, LogLevel level) {
  InitLog("kvern-x", LogLevel::kInfo, format);
  testing::internal::CaptureStderr();
  Log(level, "group_live", {{"group", "a b\n"}, {"blocks", 12}});
  return testing::internal::GetCapturedStderr();
}

TEST(LogTest, TextIsOneLineWhateverTheValue) {
  EXPECT_EQ(Logged(LogFormat::kText, LogLevel::kInfo),
            "kvern-x: info group_live group=\"a b\\n\" blocks=12\n");
}

TEST(LogTest, JsonParses) {
  auto line = nlohmann::json::parse(Logged(LogFormat::kJson, LogLevel::kWarning));
  EXPECT_EQ(line["event"], "group_live");
  EXPECT_EQ(line["level"], "warning");
  EXPECT_EQ(line["group"], "a b\n");
  EXPECT_EQ(line["blocks"], 12);
  EXPECT_GT(line["time_ms"].get<int64_t>(), 1'600'000'000'000);
}

TEST(LogTest, JsonKeepsTheTypesOfValues) {
  InitLog("kvern-x", LogLevel::kInfo, LogFormat::kJson);
  std::string text = FormatLogLine(LogLevel::kInfo, "x",
                                   {{"number", uint64_t{1} << 63},
                                    {"fraction", 0.5},
                                    {"digits", "12"},
                                    {"infinite", std::numeric_limits<double>::infinity()},
                                    LogField::Json("list", "[1,{\"a\":2}]")});
  auto line = nlohmann::json::parse(text);
  EXPECT_EQ(line["number"], uint64_t{1} << 63);
  EXPECT_EQ(line["fraction"], 0.5);
  EXPECT_EQ(line["digits"], "12");
  EXPECT_EQ(line["infinite"], "inf");
  EXPECT_EQ(line["list"][1]["a"], 2);
}

TEST(LogTest, BelowTheLevelNothing) { EXPECT_EQ(Logged(LogFormat::kText, LogLevel::kDebug), ""); }

// A stopped launcher, or a pager that nobody scrolls, must not stop a router or a rank.
TEST(LogTest, AReaderThatDoesNotReadHoldsUpNobody) {
  InitLog("kvern-x", LogLevel::kInfo, LogFormat::kText);
  const int before = dup(STDERR_FILENO);
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  ASSERT_EQ(fcntl(ends[1], F_SETFL, 0), 0);  // as programs find it
  ASSERT_EQ(dup2(ends[1], STDERR_FILENO), STDERR_FILENO);
  constexpr int kLines = 5000;  // more than a pipe holds
  for (int i = 0; i < kLines; ++i) Log(LogLevel::kInfo, "a_line_of_some_length", {{"number", i}});
  const auto read_all = [&] {
    std::string all;
    char bytes[4096];
    for (ssize_t got; (got = read(ends[0], bytes, sizeof(bytes))) > 0;) {
      all.append(bytes, static_cast<size_t>(got));
    }
    return all;
  };
  const std::string first = read_all();
  const auto told = std::count(first.begin(), first.end(), '\n');
  Log(LogLevel::kInfo, "the_next");
  dup2(before, STDERR_FILENO);
  EXPECT_EQ(read_all(), absl::StrCat("(", kLines - told, " log lines were lost: nobody reads)\n",
                                     "kvern-x: info the_next\n"));
  EXPECT_GT(told, 100);
  EXPECT_EQ(first.back(), '\n');
  for (int fd : {before, ends[0], ends[1]}) close(fd);
}

}  // namespace
}  // namespace kvern
