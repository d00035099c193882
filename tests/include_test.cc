// What a test takes from a header that is precompiled (cmake/precompiled.cmake), it includes, by
// itself or by a header of ours: the compiler does not notice when the include is missing.
#include <cctype>
#include <filesystem>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/source_files.h"

namespace kvern {
namespace {

// For each precompiled header, names that ask for it.
const std::map<std::string, std::vector<std::string>>& NamesOfHeaders() {
  static const std::map<std::string, std::vector<std::string>> kNames = {
      {"algorithm",
       {"std::all_of(",      "std::any_of(",      "std::clamp(",       "std::copy(",
        "std::count(",       "std::count_if(",    "std::equal(",       "std::fill(",
        "std::find(",        "std::find_if(",     "std::lower_bound(", "std::max(",
        "std::max_element(", "std::min(",         "std::min_element(", "std::none_of(",
        "std::nth_element(", "std::remove_if(",   "std::reverse(",     "std::shuffle(",
        "std::sort(",        "std::stable_sort(", "std::transform(",   "std::unique(",
        "std::upper_bound(", "std::push_heap(",   "std::pop_heap(",    "std::ranges::sort("}},
      {"array", {"std::array<", "std::to_array("}},
      {"atomic", {"std::atomic", "std::atomic_ref", "std::memory_order_relaxed"}},
      {"charconv", {"std::from_chars(", "std::to_chars("}},
      {"chrono", {"std::chrono::"}},
      {"cmath",
       {"std::abs(", "std::ceil(", "std::cos(", "std::exp(", "std::floor(", "std::isfinite(",
        "std::isinf(", "std::isnan(", "std::log(", "std::log2(", "std::lround(", "std::nan(",
        "std::pow(", "std::round(", "std::sin(", "std::sqrt(", "std::tanh("}},
      {"cstdint",
       {"int8_t", "int16_t", "int32_t", "int64_t", "uint8_t", "uint16_t", "uint32_t", "uint64_t",
        "uintptr_t"}},
      {"cstring", {"std::memcmp(", "std::memcpy(", "std::memset(", "std::strcmp(", "std::strlen("}},
      {"deque", {"std::deque<"}},
      {"filesystem", {"std::filesystem::"}},
      {"fstream", {"std::ifstream", "std::ofstream", "std::fstream"}},
      {"functional", {"std::function<", "std::hash<", "std::less<", "std::greater<"}},
      {"limits", {"std::numeric_limits<"}},
      {"map", {"std::map<", "std::multimap<"}},
      {"memory",
       {"std::make_shared<", "std::make_unique<", "std::shared_ptr<", "std::unique_ptr<",
        "std::weak_ptr<"}},
      {"mutex", {"std::lock_guard", "std::mutex", "std::scoped_lock", "std::unique_lock"}},
      {"optional", {"std::make_optional(", "std::nullopt", "std::optional<"}},
      {"set", {"std::multiset<", "std::set<"}},
      {"span", {"std::span", "std::as_bytes("}},
      {"sstream", {"std::istringstream", "std::ostringstream", "std::stringstream"}},
      {"string", {"std::getline(", "std::string", "std::to_string("}},
      {"string_view", {"std::string_view"}},
      {"thread", {"std::this_thread::", "std::thread"}},
      {"utility", {"std::exchange(", "std::forward<", "std::move(", "std::pair<", "std::swap("}},
      {"variant", {"std::get_if<", "std::holds_alternative<", "std::variant<", "std::visit("}},
      {"vector", {"std::vector<"}},
      {"absl/container/flat_hash_map.h", {"absl::flat_hash_map<"}},
      {"absl/status/status.h", {"absl::OkStatus(", "absl::Status", "absl::StatusCode"}},
      {"absl/status/statusor.h", {"absl::StatusOr<"}},
      {"absl/strings/str_cat.h", {"absl::StrAppend(", "absl::StrCat("}},
      {"absl/strings/str_format.h", {"absl::StrAppendFormat(", "absl::StrFormat("}},
      {"absl/strings/str_join.h", {"absl::StrJoin("}},
      {"absl/strings/str_split.h", {"absl::StrSplit("}},
      {"gmock/gmock.h", {"ASSERT_THAT(", "EXPECT_THAT(", "testing::ElementsAre(", "MOCK_METHOD("}},
      {"gtest/gtest.h",
       {"ASSERT_EQ(", "ASSERT_TRUE(", "EXPECT_EQ(", "EXPECT_TRUE(", "TEST(", "TEST_F("}},
  };
  return kNames;
}

bool IsWord(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

bool Mentions(std::string_view code, std::string_view name) {
  for (size_t at = code.find(name); at != code.npos; at = code.find(name, at + 1)) {
    size_t end = at + name.size();
    bool begins = at == 0 || !IsWord(code[at - 1]);
    bool ends = !IsWord(name.back()) || end == code.size() || !IsWord(code[end]);
    if (begins && ends) return true;
  }
  return false;
}

// Without comments and without what is between quotes.
std::string CodeOf(const SourceFile& file) {
  std::string code;
  for (const std::string& line : file.lines) {
    bool quoted = false;
    for (size_t i = 0; i < line.size(); ++i) {
      if (!quoted && line.compare(i, 2, "//") == 0) break;
      bool in_char = i > 0 && line[i - 1] == '\'';
      if (line[i] == '"' && !in_char) quoted = !quoted;
      if (quoted && line[i] == '\\') ++i;
      if (!quoted) code += line[i];
    }
    code += '\n';
  }
  return code;
}

std::vector<std::string> Includes(const SourceFile& file) {
  static const std::regex kInclude("^ *# *include [<\"]([^>\"]+)[>\"].*");
  std::vector<std::string> includes;
  std::smatch match;
  for (const std::string& line : file.lines) {
    if (line.find("include") == line.npos) continue;
    if (std::regex_match(line, match, kInclude)) includes.push_back(match[1]);
  }
  return includes;
}

// All that `path` includes by itself or by headers of ours.
std::set<std::string> Reached(const std::map<std::string, std::vector<std::string>>& includes,
                              const std::string& path) {
  std::set<std::string> reached;
  std::vector<std::string> open = {path};
  while (!open.empty()) {
    auto found = includes.find(open.back());
    open.pop_back();
    if (found == includes.end()) continue;
    for (const std::string& include : found->second) {
      if (reached.insert(include).second) open.push_back(include);
    }
  }
  if (reached.contains("gmock/gmock.h")) reached.insert("gtest/gtest.h");
  return reached;
}

TEST(Includes, WhatIsUsedOfAPrecompiledHeaderIsIncluded) {
  std::map<std::string, std::vector<std::string>> includes;
  for (const SourceFile& file : AllSources()) includes[file.path] = Includes(file);
  for (const SourceFile& file : AllSources()) {
    if (!file.path.starts_with("tests/")) continue;  // Built without precompiled headers.
    std::set<std::string> reached = Reached(includes, file.path);
    std::string code = CodeOf(file);
    for (const auto& [header, names] : NamesOfHeaders()) {
      if (reached.contains(header)) continue;
      for (const std::string& name : names) {
        EXPECT_FALSE(Mentions(code, name)) << file.path << ": " << name << " needs " << header;
      }
    }
  }
}

TEST(Includes, EveryPrecompiledHeaderIsChecked) {
  std::string cmake;
  for (const std::string& line : ReadLines("cmake/precompiled.cmake")) {
    if (line.find('#') == line.npos) cmake += line + "\n";
  }
  std::set<std::string> precompiled;
  static const std::regex kHeader("<([a-z_/.]+)>");
  for (std::sregex_iterator it(cmake.begin(), cmake.end(), kHeader), end; it != end; ++it) {
    precompiled.insert((*it)[1]);
  }
  std::set<std::string> checked;
  for (const auto& [header, names] : NamesOfHeaders()) checked.insert(header);
  EXPECT_EQ(precompiled, checked);
}

// Who uses ccache would not notice that a precompiled header does not fit.
TEST(Includes, NobodyHasFlagsThatNoPrecompiledHeaderFits) {
  static const std::regex kFlags("target_compile_options|COMPILE_OPTIONS|COMPILE_FLAGS");
  for (const auto& entry : std::filesystem::recursive_directory_iterator("tests")) {
    if (entry.path().filename() != "CMakeLists.txt") continue;
    for (const std::string& line : ReadLines(entry.path())) {
      EXPECT_FALSE(std::regex_search(line, kFlags))
          << entry.path() << ": " << line << ": use OPTIONS of kvern_test";
    }
  }
}

}  // namespace
}  // namespace kvern
