// What bench_gpu found: lines for people as they come, JSON at the end.
#pragma once

#include <cstdio>
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
  void Add(Finding finding) {
    std::string line = finding.bench;
    for (const auto& [name, value] : finding.values) absl::StrAppend(&line, "  ", name, "=", value);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    findings_.push_back(std::move(finding));
  }
  // A part that did not work: the others still count.
  void Failed(const std::string& bench, const std::string& why) {
    ++failures_;
    Add({bench, {{"error", Text(why)}}});
  }

  int failures() const { return failures_; }

  std::string Json() const {
    std::string json = "[";
    for (const Finding& finding : findings_) {
      absl::StrAppend(&json, json.size() > 1 ? ",\n " : "\n ", "{\"bench\": ", Text(finding.bench));
      for (const auto& [name, value] : finding.values) {
        absl::StrAppend(&json, ", ", Text(name), ": ", value);
      }
      absl::StrAppend(&json, "}");
    }
    return json + "\n]\n";
  }

 private:
  std::vector<Finding> findings_;
  int failures_ = 0;
};

}  // namespace kvern::gpu
