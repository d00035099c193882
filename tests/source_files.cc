#include "tests/source_files.h"

#include <algorithm>
#include <fstream>
#include <set>

namespace kvern {
namespace {

namespace fs = std::filesystem;

bool IsSource(const fs::path& path) {
  static const std::set<std::string> kEndings = {".h", ".cc", ".cu", ".cuh"};
  return kEndings.contains(path.extension().string());
}

}  // namespace

std::vector<std::string> ReadLines(const fs::path& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

const std::vector<SourceFile>& AllSources() {
  static const std::vector<SourceFile> kFiles = [] {
    std::vector<SourceFile> files;
    for (const char* root : kRoots) {
      for (const auto& entry : fs::recursive_directory_iterator(root)) {
        if (!entry.is_regular_file() || !IsSource(entry.path())) continue;
        files.push_back(
            {entry.path().string(), entry.path().parent_path().string(), ReadLines(entry.path())});
      }
    }
    std::sort(files.begin(), files.end(),
              [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
    return files;
  }();
  return kFiles;
}

}  // namespace kvern
