// What a bench found, as it comes: lines for people, and JSON, an object a line.
#pragma once

#include <cstdio>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvern::gpu {

// One measured thing: a name, what was given, what came out. Values are JSON already.
struct Finding {
  std::string bench;
  std::vector<std::pair<std::string, std::string>> values;
};

inline std::string Text(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return quoted + "\"";
}
// Three digits are more than any of these times is worth.
inline std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.4g", value);
  return text;
}

class Report {
 public:
  // json_path: empty for lines only.
  explicit Report(const std::string& json_path) {
    if (json_path.empty()) return;
    json_.open(json_path);
    if (!json_.is_open()) Failed({"report", {}}, "cannot write " + json_path);
  }

  // Whatever ends the program later, this has been said.
  void Add(const Finding& finding) {
    std::string line = finding.bench;
    std::string json = "{\"bench\": " + Text(finding.bench);
    for (const auto& [name, value] : finding.values) {
      absl::StrAppend(&line, "  ", name, "=", value);
      absl::StrAppend(&json, ", ", Text(name), ": ", value);
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    if (json_.is_open()) json_ << json + "}\n" << std::flush;
  }
  // A part that did not work, with what it was given: the others still count.
  void Failed(Finding part, const std::string& why) {
    ++failures_;
    part.values.emplace_back("error", Text(why));
    Add(part);
  }

  int failures() const { return failures_; }

 private:
  std::ofstream json_;
  int failures_ = 0;
};

}  // namespace kvern::gpu
