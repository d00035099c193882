// Runs every transcript: the script's events go into a new Router, and what it does must be, letter
// by letter, what the file says. KVERN_REWRITE=1 rewrites the files (read the difference before you
// keep it).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/router/core/script.h"

namespace kvern {
namespace {

constexpr char kFolder[] = "tests/router/core/transcripts";

std::string ReadFile(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

std::vector<std::string> TranscriptNames() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {
    if (entry.path().extension() == ".txt") names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// The first line that differs, with the lines before it.
std::string FirstDifference(const std::string& expected, const std::string& actual) {
  std::istringstream left(expected), right(actual);
  std::string expected_line, actual_line, before;
  for (int number = 1;; ++number) {
    bool more_left = static_cast<bool>(std::getline(left, expected_line));
    bool more_right = static_cast<bool>(std::getline(right, actual_line));
    if (!more_left) expected_line = "(end)";
    if (!more_right) actual_line = "(end)";
    if (expected_line != actual_line || (!more_left && !more_right)) {
      return before + "line " + std::to_string(number) + "\n- " + expected_line + "\n+ " +
             actual_line + "\n";
    }
    before = before.size() > 2000 ? "" : before + "  " + expected_line + "\n";
  }
}

TEST(RouterTranscript, EveryFileSaysWhatTheRouterDoes) {
  std::vector<std::string> names = TranscriptNames();
  ASSERT_GE(names.size(), 14u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    std::filesystem::path path = std::filesystem::path(kFolder) / (name + ".txt");
    std::string expected = ReadFile(path);
    std::string actual = ScriptRunner().Run(expected);
    if (std::getenv("KVERN_REWRITE") != nullptr) {
      std::ofstream(path) << actual;
      continue;
    }
    EXPECT_TRUE(expected == actual) << FirstDifference(expected, actual);
    EXPECT_EQ(actual, ScriptRunner().Run(expected)) << "the same calls gave other effects";
  }
}

}  // namespace
}  // namespace kvern
