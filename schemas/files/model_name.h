// The name under which a model is served when nobody gives one.
#pragma once

#include <filesystem>
#include <string>

namespace kvern {

// The name of the file without ".gguf", or of the folder: "models/SmolLM2-135M.gguf" and
// "models/SmolLM2-135M/" are both "SmolLM2-135M". The router and its workers must agree on it.
inline std::string ModelNameOf(const std::string& path) {
  std::filesystem::path absolute = std::filesystem::absolute(path).lexically_normal();
  if (absolute.filename().empty()) absolute = absolute.parent_path();
  std::string name =
      absolute.extension() == ".gguf" ? absolute.stem().string() : absolute.filename().string();
  return name.empty() ? "model" : name;
}

}  // namespace kvern
