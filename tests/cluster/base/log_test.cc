#include "cluster/base/log.h"

#include <cstdint>
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
  EXPECT_EQ(line["blocks"], "12");
  EXPECT_GT(line["time_ms"].get<int64_t>(), 1'600'000'000'000);
}

TEST(LogTest, BelowTheLevelNothing) { EXPECT_EQ(Logged(LogFormat::kText, LogLevel::kDebug), ""); }

}  // namespace
}  // namespace kvern
