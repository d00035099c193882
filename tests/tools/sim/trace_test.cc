// Traces are files of others: every defect is refused by line, field and value.
#include "tools/sim/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvern::sim {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kHeader[] = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n";

std::string ErrorOf(const std::string& text) {
  return std::string(ParseTrace(text).status().message());
}

TEST(Trace, ReadsAzure) {
  auto rows = ParseTrace(std::string(kHeader) +
                         "2023-11-16 23:59:59.6805900,374,44\r\n"
                         "2023-11-17 00:00:01.0000000,396,109\r\n"
                         "2023-11-17 00:00:01,5,1");
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 3u);
  EXPECT_EQ((*rows)[0].at, 0);
  EXPECT_EQ((*rows)[1].at, 1'319'410'000);  // over midnight
  EXPECT_EQ((*rows)[2].at, 1'319'410'000);
  EXPECT_EQ((*rows)[1].prompt_tokens, 396u);
  EXPECT_EQ((*rows)[1].output_tokens, 109u);
}

TEST(Trace, ReadsOverTheEndOfFebruary) {
  for (auto [year, days] : {std::pair{"2023", 1}, {"2024", 2}}) {
    std::string y = year;
    auto rows = ParseTrace(std::string(kHeader) + y + "-02-28 00:00:00,1,1\n" + y +
                           "-03-01 00:00:00,1,1\n");
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ((*rows)[1].at, days * 86400 * kSecond) << year;
  }
}

TEST(Trace, ReadsMooncake) {
  auto rows = ParseTrace(
      "{\"timestamp\": 100, \"input_length\": 600, \"output_length\": 7, \"hash_ids\": [3, 9]}\n"
      "{\"timestamp\": 103, \"input_length\": 1, \"output_length\": 1}\n");
  ASSERT_TRUE(rows.ok()) << rows.status();
  ASSERT_EQ(rows->size(), 2u);
  EXPECT_EQ((*rows)[1].at, 3 * kMillisecond);
  EXPECT_EQ((*rows)[0].prompt_tokens, 600u);
  EXPECT_EQ((*rows)[0].output_tokens, 7u);
  EXPECT_THAT((*rows)[0].prefix, ElementsAre(3, 9));
}

TEST(Trace, RefusesWhatIsNotThere) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("no requests"));
  EXPECT_THAT(ErrorOf(kHeader), HasSubstr("no requests"));
  EXPECT_THAT(std::string(ReadTrace("/nonexistent/trace").status().message()),
              HasSubstr("'/nonexistent/trace'"));
  EXPECT_THAT(std::string(ReadTrace("/").status().message()), HasSubstr("'/'"));
}

TEST(Trace, RefusesBadAzureRows) {
  const std::pair<const char*, const char*> kBad[] = {
      {"2023-11-16 18:15:46.68,374", "line 2: 2 fields"},
      {"2023-11-16 18:15:46.68,374,4,5", "line 2: 4 fields"},
      {"2023-11-16 18:15:46.68,0,44", "ContextTokens is '0', allowed: 1 to 1000000"},
      {"2023-11-16 18:15:46.68,374,-1", "GeneratedTokens is '-1'"},
      {"2023-11-16 18:15:46.68,374,1000001", "GeneratedTokens is '1000001'"},
      {"2023-11-16 18:15:46.68,3.5,1", "ContextTokens is '3.5'"},
      {"2023-11-16 18:15:46.68,99999999999999999999,1", "ContextTokens is '9999"},
      {"2023-13-16 18:15:46.68,1,1", "TIMESTAMP is '2023-13"},
      {"2023-11-16 24:15:46.68,1,1", "TIMESTAMP is"},
      {"2023-11-16 18:15:46.,1,1", "TIMESTAMP is"},
      {"2023-11-16 18:15:46.1234567890,1,1", "TIMESTAMP is"},
      {"2023-11-16 18:15:46.12a,1,1", "TIMESTAMP is"},
      {"yesterday,1,1", "TIMESTAMP is 'yesterday'"},
      {",,", "TIMESTAMP is ''"},
  };
  for (const auto& [row, error] : kBad) {
    EXPECT_THAT(ErrorOf(std::string(kHeader) + row + "\n"), HasSubstr(error)) << row;
  }
}

TEST(Trace, RefusesBadMooncakeRows) {
  const std::pair<const char*, const char*> kBad[] = {
      {"{", "line 1: not a JSON object"},
      {"[1]", "not a JSON object"},
      {R"({"timestamp":0,"output_length":1})", "input_length is missing"},
      {R"({"timestamp":0,"input_length":0,"output_length":1})", "input_length is 0, allowed: 1 to"},
      {R"({"timestamp":-1,"input_length":1,"output_length":1})", "timestamp is -1"},
      {R"({"timestamp":"0","input_length":1,"output_length":1})", "timestamp is \"0\""},
      {R"({"timestamp":0,"input_length":1.5,"output_length":1})", "input_length is 1.5"},
      {R"({"timestamp":0,"input_length":1,"output_length":18446744073709551615})",
       "output_length is 18446744073709551615"},
      {R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":3})", "hash_ids is 3"},
      {R"({"timestamp":0,"input_length":1,"output_length":1,"hash_ids":[-3]})",
       "an entry of hash_ids is -3"},
  };
  for (const auto& [row, error] : kBad) EXPECT_THAT(ErrorOf(row), HasSubstr(error)) << row;
}

TEST(Trace, RefusesTimeThatGoesBack) {
  EXPECT_THAT(
      ErrorOf(std::string(kHeader) + "2023-11-16 18:15:46.2,1,1\n2023-11-16 18:15:46.1,1,1"),
      HasSubstr("line 3: the timestamp is before"));
}

}  // namespace
}  // namespace kvern::sim
