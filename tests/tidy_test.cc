// Style as a test: include directions, lengths, banned calls, folder READMEs, dead files. What is
// not checked here is not a rule of the house (CONTRIBUTING.md). Runs in the source root.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/source_files.h"

namespace kvern {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxColumns = 100;
constexpr size_t kMaxFileLines = 600;
constexpr size_t kMaxFunctionLines = 70;
constexpr size_t kMaxReadmeLines = 60;

bool StartsWith(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// The drawing of docs/architecture.md: who may include whom, by path prefix. The first row whose
// folder is a prefix of the file's folder applies; a file may always include its own folder.
struct Direction {
  std::string folder;
  std::vector<std::string> allowed;
};

const std::vector<Direction>& Directions() {
  static const std::vector<Direction> kDirections = {
      {"router/core",
       {"cluster/base/", "cluster/capacity/", "schemas/ids.h", "schemas/messages.h",
        "schemas/client_messages.h", "schemas/worker_messages.h"}},
      {"router/text", {"cluster/base/", "schemas/files/"}},
      {"router", {"router/", "cluster/", "schemas/"}},
      {"worker/core",
       {"cluster/base/", "cluster/capacity/", "schemas/ids.h", "schemas/messages.h",
        "schemas/client_messages.h", "schemas/worker_messages.h", "schemas/plan_messages.h"}},
      {"worker/device",
       {"worker/device/", "kernels/", "cluster/base/", "schemas/files/dtype.h", "schemas/ids.h"}},
      {"worker/comm/nccl", {"worker/comm/", "worker/device/", "kernels/cuda/", "cluster/base/"}},
      {"worker/comm", {"worker/device/", "cluster/base/"}},
      {"worker/model",
       {"worker/device/", "worker/comm/", "cluster/base/", "cluster/capacity/", "schemas/files/",
        "schemas/ids.h", "schemas/client_messages.h", "schemas/plan_messages.h"}},
      {"worker", {"worker/", "cluster/", "schemas/"}},
      {"schemas", {"schemas/", "cluster/base/"}},
      {"kernels/reference", {}},
      {"kernels/simt", {"kernels/simt/"}},
      {"kernels", {"kernels/"}},
      {"cluster/base", {}},
      {"cluster/capacity", {"cluster/base/"}},
      {"cluster", {"cluster/", "schemas/"}},
      {"tools", {"cluster/", "schemas/", "router/", "worker/", "kernels/", "tools/"}},
      {"tests", {"cluster/", "schemas/", "router/", "worker/", "kernels/", "tools/", "tests/"}},
  };
  return kDirections;
}

// The path in `#include "..."`, empty for anything else or for a library's header.
std::string OwnInclude(const std::string& line) {
  static const std::regex kInclude("^#include \"([^\"]+)\"");
  std::smatch match;
  if (!std::regex_search(line, match, kInclude)) return "";
  for (const char* root : kRoots) {
    if (StartsWith(match[1].str(), std::string(root) + "/")) return match[1].str();
  }
  return "";
}

TEST(Tidy, IncludesFollowTheDrawing) {
  for (const SourceFile& file : AllSources()) {
    auto direction =
        std::find_if(Directions().begin(), Directions().end(), [&](const Direction& row) {
          return file.folder == row.folder || StartsWith(file.folder, row.folder + "/");
        });
    ASSERT_NE(direction, Directions().end()) << file.path << ": folder is not in the drawing";
    for (const std::string& line : file.lines) {
      std::string include = OwnInclude(line);
      if (include.empty() || fs::path(include).parent_path().string() == file.folder) continue;
      bool allowed =
          std::any_of(direction->allowed.begin(), direction->allowed.end(),
                      [&](const std::string& prefix) { return StartsWith(include, prefix); });
      EXPECT_TRUE(allowed) << file.path << " includes " << include;
    }
  }
}

TEST(Tidy, CoresStayPure) {
  static const std::regex kBanned(
      "<(thread|mutex|atomic|chrono|random|fstream|iostream|filesystem|condition_variable|ctime|"
      "unistd\\.h|sys/[a-z]+\\.h|time\\.h|zmq\\.h|zmq\\.hpp)>|cluster/base/(clock|log)\\.h|"
      "std::unordered_|flat_hash_(map|set)|\\b(rand|getenv|time|sleep|usleep|printf)\\(");
  for (const SourceFile& file : AllSources()) {
    if (file.folder != "router/core" && file.folder != "worker/core" &&
        file.folder != "cluster/capacity") {
      continue;
    }
    for (size_t i = 0; i < file.lines.size(); ++i) {
      std::string code = file.lines[i].substr(0, file.lines[i].find("//"));
      EXPECT_FALSE(std::regex_search(code, kBanned)) << file.path << ":" << i + 1 << ": " << code;
    }
  }
}

TEST(Tidy, FilesAndLinesAreShort) {
  for (const SourceFile& file : AllSources()) {
    EXPECT_LE(file.lines.size(), kMaxFileLines) << file.path;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      size_t columns = static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
        return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
      }));
      EXPECT_LE(columns, kMaxColumns) << file.path << ":" << i + 1;
      EXPECT_EQ(line.find('\t'), std::string::npos) << file.path << ":" << i + 1 << ": tab";
      EXPECT_FALSE(!line.empty() && line.back() == ' ')
          << file.path << ":" << i + 1 << ": blank at end";
    }
  }
}

// The line on which the parentheses that end on line `i` began: a signature may be wrapped.
size_t FirstLineOfSignature(const std::vector<std::string>& lines, size_t i) {
  auto open = [&](size_t at) {
    return std::count(lines[at].begin(), lines[at].end(), ')') -
           std::count(lines[at].begin(), lines[at].end(), '(');
  };
  for (auto missing = open(i); missing > 0 && i > 0; missing += open(i)) --i;
  return i;
}

// In formatted code a function's body ends with the first '}' at the indentation of its first line.
TEST(Tidy, FunctionsAreShort) {
  static const std::regex kNotFunction(
      "^ "
      "*(namespace|class|struct|enum|union|if|for|while|switch|else|do|try|extern|return|case|"
      "using|"
      "typedef|static const|const auto|#)");
  for (const SourceFile& file : AllSources()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (file.lines[i].empty() || file.lines[i].back() != '{') continue;
      const std::string& line = file.lines[FirstLineOfSignature(file.lines, i)];
      if (line.find('(') == std::string::npos) continue;
      size_t indent = line.find_first_not_of(' ');
      if (indent > 4 || std::regex_search(line, kNotFunction)) continue;
      std::string closing = std::string(indent, ' ') + "}";
      size_t end = i + 1;
      while (end < file.lines.size() && !StartsWith(file.lines[end], closing)) ++end;
      EXPECT_LE(end - i, kMaxFunctionLines) << file.path << ":" << i + 1 << ": " << line;
    }
  }
}

TEST(Tidy, HeadersArePragmaOnceAndExplained) {
  for (const SourceFile& file : AllSources()) {
    ASSERT_FALSE(file.lines.empty()) << file.path;
    if (!StartsWith(file.path, "tests/") || file.path.ends_with(".h")) {
      bool has_comment =
          std::any_of(file.lines.begin(), file.lines.end(),
                      [](const std::string& line) { return StartsWith(line, "//"); });
      EXPECT_TRUE(has_comment || file.path.ends_with(".cc"))
          << file.path << ": says nothing about itself";
    }
    // Highway includes its -inl.h once per target; they guard themselves with HWY_TARGET_TOGGLE.
    if (!file.path.ends_with(".h") || file.path.ends_with("-inl.h")) continue;
    bool once = std::find(file.lines.begin(), file.lines.end(), "#pragma once") != file.lines.end();
    EXPECT_TRUE(once) << file.path;
  }
}

TEST(Tidy, EveryFolderOfCodeHasAReadme) {
  std::set<std::string> folders;
  for (const SourceFile& file : AllSources()) folders.insert(file.folder);
  for (const std::string& folder : folders) {
    bool is_test = StartsWith(folder, "tests/");
    fs::path readme = fs::path(is_test ? "tests" : folder) / "README.md";
    ASSERT_TRUE(fs::exists(readme)) << folder << " has no README.md";
    EXPECT_LE(ReadLines(readme).size(), kMaxReadmeLines) << readme;
  }
}

TEST(Tidy, EverySourceIsBuilt) {
  for (const SourceFile& file : AllSources()) {
    if (file.path.ends_with(".h") || file.path.ends_with(".cuh")) continue;
    std::string wanted = fs::path(file.path).filename().string();
    bool built = wanted == "corpus_main.cc";  // Named in cmake/kvern.cmake.
    for (fs::path folder = file.folder; !built && !folder.empty(); folder = folder.parent_path()) {
      if (!fs::exists(folder / "CMakeLists.txt")) continue;
      for (const std::string& line : ReadLines(folder / "CMakeLists.txt")) {
        built = built || line.find(wanted) != std::string::npos ||
                line.find(fs::path(wanted).stem().string()) != std::string::npos;
      }
    }
    EXPECT_TRUE(built) << file.path << " is in no CMakeLists.txt";
  }
}

TEST(Tidy, NothingIsLeftUnfinished) {
  // Spelled in two halves so that this file does not find itself.
  static const std::regex kUnfinished(std::string("\\b(TO") + "DO|FIX" + "ME|XX" + "X|HA" +
                                      "CK)\\b");
  for (const SourceFile& file : AllSources()) {
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_FALSE(std::regex_search(file.lines[i], kUnfinished)) << file.path << ":" << i + 1;
    }
  }
}

}  // namespace
}  // namespace kvern
