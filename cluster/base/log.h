// One structured line per event, on stderr, as text or JSON. Prompts and answers are never logged.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "cluster/base/status.h"

namespace kvern {

enum class LogLevel { kDebug, kInfo, kWarning, kError };
enum class LogFormat { kText, kJson };

// Called once, before other threads start. `process` names the program in every line.
void InitLog(std::string process, LogLevel level, LogFormat format);

// What InitLog was told.
LogFormat CurrentLogFormat();

// The values of --log-level: debug, info, warning, error; of --log-format: text, json.
absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text);
absl::StatusOr<LogFormat> ParseLogFormat(std::string_view text);

// One key=value pair of an event. Numbers and strings convert by themselves.
struct LogField {
  template <typename T>
  LogField(std::string_view key_in, const T& value_in)
      : key(key_in), value(absl::StrCat(value_in)), is_json(std::is_arithmetic_v<T>) {}
  LogField(std::string_view key_in, std::string_view value_in) : key(key_in), value(value_in) {}

  // A value that is JSON already, such as a list.
  static LogField Json(std::string_view key, std::string_view json) {
    LogField field(key, json);
    field.is_json = true;
    return field;
  }

  std::string_view key;
  std::string value;
  bool is_json = false;  // numbers are; in a JSON line they stand as they are
};

// Log(LogLevel::kInfo, "group_live", {{"group", name}, {"blocks", blocks}}). Thread-safe.
void Log(LogLevel level, std::string_view event, std::vector<LogField> fields = {});

// The line that Log would write, without its newline; empty if the level is off. For whoever must
// not block on stderr and writes it by other means.
std::string FormatLogLine(LogLevel level, std::string_view event,
                          const std::vector<LogField>& fields = {});

}  // namespace kvern
