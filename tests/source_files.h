// The sources of this tree, for the tests that read them. They run in the source root.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kvern {

// The folders with code, from the root.
inline constexpr const char* kRoots[] = {"schemas", "cluster", "router", "worker",
                                         "kernels", "tools",   "tests"};

struct SourceFile {
  std::string path;  // from the root, e.g. router/core/router.cc
  std::string folder;
  std::vector<std::string> lines;
};

std::vector<std::string> ReadLines(const std::filesystem::path& path);

// All .h, .cc, .cu and .cuh below kRoots, by path.
const std::vector<SourceFile>& AllSources();

}  // namespace kvern
