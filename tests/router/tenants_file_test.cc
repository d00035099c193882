#include "router/tenants_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kvern {
namespace {

using testing::HasSubstr;

TEST(TenantsFile, OnlyTheNameIsNeeded) {
  auto tenants = ParseTenants(
      R"({"tenants": [{"name": "a"}, {"name": "b", "weight": 3, "max_blocks": 40,
          "block_seconds_per_minute": 900, "priority_ceiling": 2}]})",
      "file");
  ASSERT_TRUE(tenants.ok()) << tenants.status();
  ASSERT_EQ(tenants->size(), 2u);
  EXPECT_EQ((*tenants)[0].weight, 1u);
  EXPECT_EQ((*tenants)[0].max_blocks, 0u);
  EXPECT_EQ((*tenants)[1].name, "b");
  EXPECT_EQ((*tenants)[1].weight, 3u);
  EXPECT_EQ((*tenants)[1].max_blocks, 40u);
  EXPECT_EQ((*tenants)[1].block_seconds_per_minute, 900u);
  EXPECT_EQ((*tenants)[1].priority_ceiling, 2);
}

TEST(TenantsFile, ErrorsNameEntryFieldValueAndLimit) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "file"},
      {"[]", "file"},
      {"{}", "one field, tenants"},
      {R"({"tenants": 3})", "one field, tenants"},
      {R"({"tenants": [], "more": 1})", "more is not known, allowed: tenants"},
      {R"({"tenants": [{"weight": 1}]})", "tenants[0].name"},
      {R"({"tenants": [{"name": "a"}, {"name": "b", "weight": 0}]})", "tenants[1].weight"},
      {R"({"tenants": [{"name": "a", "weight": 1001}]})", "1001"},
      {R"({"tenants": [{"name": "a", "weight": "3"}]})", "tenants[0].weight"},
      {R"({"tenants": [{"name": "a", "max_blocks": -1}]})", "tenants[0].max_blocks"},
      {R"({"tenants": [{"name": "a", "priority_ceiling": 8}]})", "tenants[0].priority_ceiling"},
      {R"({"tenants": [{"name": "a", "wieght": 2}]})", "wieght"},
      {R"({"tenants": [{"name": "a"}, {"name": "a"}]})", "second time"},
  };
  for (const auto& [text, error] : cases) {
    auto tenants = ParseTenants(text, "file");
    ASSERT_FALSE(tenants.ok()) << text;
    EXPECT_THAT(std::string(tenants.status().message()), HasSubstr(error)) << text;
  }
}

TEST(TenantsFile, AMissingFileIsNamed) {
  auto tenants = ReadTenantsFile("/nonexistent/tenants.json");
  ASSERT_FALSE(tenants.ok());
  EXPECT_THAT(std::string(tenants.status().message()), HasSubstr("/nonexistent/tenants.json"));
}

}  // namespace
}  // namespace kvern
