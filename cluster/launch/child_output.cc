#include "cluster/launch/child_output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace kvern {
namespace {

constexpr std::string_view kProgramPrefix = "kvern-";
constexpr std::string_view kHarmlessLevels[] = {"debug ", "info ", "warning "};

// A log line as JSON: its event and fields in one line if the level is error.
std::string JsonErrorText(std::string_view line) {
  nlohmann::ordered_json entry = nlohmann::ordered_json::parse(line, nullptr, false);
  if (!entry.is_object() || entry.value("level", "") != "error") return {};
  std::string text = entry.value("event", "error");
  for (const auto& [key, value] : entry.items()) {
    if (key == "time_ms" || key == "level" || key == "process" || key == "event") continue;
    text += " " + key + "=" + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

// "program: what ...", and no log line.
bool IsLastWords(std::string_view line) {
  if (!line.starts_with(kProgramPrefix)) return false;
  std::string_view text = line.substr(std::min(line.size(), line.find(": ") + 2));
  return !text.starts_with("error ") && !ErrorText(line).empty();
}

}  // namespace

std::string ErrorText(std::string_view line) {
  if (line.starts_with("{")) return JsonErrorText(line);
  if (line.find(": check failed: ") != std::string_view::npos) return std::string(line);
  if (line.find("ERROR: AddressSanitizer") != std::string_view::npos ||
      line.find("runtime error: ") != std::string_view::npos) {
    return std::string(line);
  }
  if (!line.starts_with(kProgramPrefix)) return {};
  size_t colon = line.find(": ");
  if (colon == std::string_view::npos ||
      line.substr(0, colon).find(' ') != std::string_view::npos) {
    return {};
  }
  std::string_view text = line.substr(colon + 2);
  for (std::string_view level : kHarmlessLevels) {
    if (text.starts_with(level)) return {};
  }
  if (text.starts_with("error ")) text.remove_prefix(6);
  return std::string(text);
}

std::string DeathReason(const ExitStatus& exit, const ChildOutput& output) {
  bool said_error = output.first_error_time() != kTimeMax;
  if (exit.signalled) {
    return said_error ? absl::StrCat(exit.ToString(), ": ", output.FirstError()) : exit.ToString();
  }
  // The last line of one that left cleanly is no reason.
  if (exit.Clean()) return absl::StrCat(exit.ToString(), " before this launcher was told to end");
  return output.FirstError().empty() ? exit.ToString() : output.FirstError();
}

bool ChildOutput::Drain(int fd, Time now, const LineSink& sink) {
  char buffer[16384];
  while (true) {
    ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got > 0) {
      Append({buffer, static_cast<size_t>(got)}, now, sink);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && errno == EAGAIN) {
      return true;
    } else {
      if (!partial_.empty()) Finish(now, sink);
      return false;
    }
  }
}

void ChildOutput::Append(std::string_view bytes, Time now, const LineSink& sink) {
  for (char c : bytes) {
    if (c == '\n') {
      Finish(now, sink);
    } else if (partial_.size() < kMaxOutputLine) {
      partial_.push_back(c);
    }
  }
}

void ChildOutput::LetGo(const std::string& name, const std::vector<std::string>& told,
                        const LineSink& sink) {
  for (const std::string& line : held_) {
    std::string text = ErrorText(line);
    if (text.starts_with(name + ": ")) text.erase(0, name.size() + 2);
    bool said = std::ranges::any_of(told, [&](const std::string& words) {
      return words == text || words.ends_with(": " + text);
    });
    if (text.empty() || !said) sink(line);
  }
  held_.clear();
}

void ChildOutput::LetGoOld(Time now, const std::string& name, const std::vector<std::string>& told,
                           const LineSink& sink) {
  if (now >= held_until()) LetGo(name, told, sink);
}

void ChildOutput::Finish(Time now, const LineSink& sink) {
  if (held_.empty() && IsLastWords(partial_)) held_since_ = now;
  if (!held_.empty() || IsLastWords(partial_)) {
    held_.push_back(partial_);
    if (held_.size() > kMaxLastWords) LetGo("", {}, sink);
  } else {
    sink(partial_);
  }
  if (!partial_.empty()) last_line_ = partial_;
  if (first_error_.empty()) {
    first_error_ = ErrorText(partial_);
    if (!first_error_.empty()) first_error_time_ = now;
  }
  partial_.clear();
}

}  // namespace kvern
