#include "cluster/base/log.h"

#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>

#include "cluster/base/clock.h"
#include "cluster/base/stderr_writer.h"
#include "spdlog/sinks/base_sink.h"
#include "spdlog/spdlog.h"

namespace kvern {
namespace {

class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    WriteToStderr({line.data(), line.size()});
  }
  void flush_() override {}
};

struct LogState {
  std::string process = "kvern";
  LogFormat format = LogFormat::kText;
  std::shared_ptr<spdlog::logger> logger;

  LogState() {
    logger = std::make_shared<spdlog::logger>("kvern", std::make_shared<StderrSink>());
    logger->set_pattern("%v");
  }
};

LogState& State() {
  static LogState* state = new LogState;  // Never destroyed: threads may log during exit.
  return *state;
}

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

const char* LevelName(LogLevel level) {
  static constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
  return kNames[static_cast<size_t>(level)];
}

std::string AsJson(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  nlohmann::ordered_json line;
  line["time_ms"] = WallClockMs();
  line["level"] = LevelName(level);
  line["process"] = State().process;
  line["event"] = event;
  for (const LogField& field : fields) {
    nlohmann::ordered_json& value = line[std::string(field.key)];
    if (field.is_json) value = nlohmann::ordered_json::parse(field.value, nullptr, false);
    // As text what is no JSON, such as a number that is not finite.
    if (!field.is_json || value.is_discarded()) value = field.value;
  }
  return line.dump(-1, ' ', true, nlohmann::ordered_json::error_handler_t::replace);
}

// A value with spaces or control characters is quoted and escaped, so one event stays one line.
std::string Quoted(const std::string& value) {
  bool plain = !value.empty();
  for (char c : value) plain = plain && c > ' ' && c != '"' && c != '\x7f';
  if (plain) return value;
  return nlohmann::json(value).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string AsText(LogLevel level, std::string_view event, const std::vector<LogField>& fields) {
  std::string line = absl::StrCat(State().process, ": ", LevelName(level), " ", ToAbsl(event));
  for (const LogField& field : fields) {
    absl::StrAppend(&line, " ", ToAbsl(field.key), "=", Quoted(field.value));
  }
  return line;
}

}  // namespace

void InitLog(std::string process, LogLevel level, LogFormat format) {
  LogState& state = State();
  state.process = std::move(process);
  state.format = format;
  state.logger->set_level(ToSpdlog(level));
}

LogFormat CurrentLogFormat() { return State().format; }

absl::StatusOr<LogLevel> ParseLogLevel(std::string_view text) {
  for (LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (text == LevelName(level)) return level;
  }
  return InvalidArgument("log level '", ToAbsl(text), "', allowed: debug, info, warning, error");
}

absl::StatusOr<LogFormat> ParseLogFormat(std::string_view text) {
  if (text == "text") return LogFormat::kText;
  if (text == "json") return LogFormat::kJson;
  return InvalidArgument("log format '", ToAbsl(text), "', allowed: text, json");
}

void Log(LogLevel level, std::string_view event, std::vector<LogField> fields) {
  std::string line = FormatLogLine(level, event, fields);
  if (!line.empty()) State().logger->log(ToSpdlog(level), "{}", line);
}

std::string FormatLogLine(LogLevel level, std::string_view event,
                          const std::vector<LogField>& fields) {
  LogState& state = State();
  if (!state.logger->should_log(ToSpdlog(level))) return {};
  return state.format == LogFormat::kJson ? AsJson(level, event, fields)
                                          : AsText(level, event, fields);
}

}  // namespace kvern
