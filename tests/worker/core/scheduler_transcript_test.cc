// Golden transcripts: lines that start with "> " are the script, the rest is what came out of it.
// The whole text is compared. KVERN_REWRITE=1 writes the new output into the files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/worker/core/scheduler_script.h"

namespace kvern {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

// Runs the script lines of `text`, keeping comments and blank lines where they are.
std::string Replay(const std::string& text) {
  SchedulerScript script;
  std::ostringstream out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.empty() || line[0] == '#') out << line << "\n";
    if (line.rfind("> ", 0) == 0) out << line << "\n" << script.Run(line.substr(2));
  }
  return out.str();
}

TEST(SchedulerTranscripts, AllAgree) {
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator("tests/worker/core/transcripts")) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  ASSERT_GE(paths.size(), 8u);
  bool rewrite = std::getenv("KVERN_REWRITE") != nullptr;
  for (const fs::path& path : paths) {
    SCOPED_TRACE(path.string());
    std::string text = ReadAll(path);
    std::string replayed = Replay(text);
    EXPECT_EQ(text, replayed);
    if (rewrite) std::ofstream(path) << replayed;
  }
}

}  // namespace
}  // namespace kvern
