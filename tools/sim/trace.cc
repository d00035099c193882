#include "tools/sim/trace.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"

namespace kvern::sim {
namespace {

constexpr std::string_view kAzureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens";
constexpr int64_t kDaySeconds = 24 * 3600;

absl::StatusOr<uint32_t> ParseTokens(std::string_view field, std::string_view text) {
  uint32_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value == 0 ||
      value > kMaxTraceTokens) {
    return InvalidArgument(ToAbsl(field), " is '", ToAbsl(text), "', allowed: 1 to ",
                           kMaxTraceTokens);
  }
  return value;
}

// Digits of `text` at [begin, begin + count); -1 when there is anything else.
int64_t Digits(std::string_view text, size_t begin, size_t count) {
  int64_t value = 0;
  for (size_t i = begin; i < begin + count; ++i) {
    if (i >= text.size() || text[i] < '0' || text[i] > '9') return -1;
    value = value * 10 + (text[i] - '0');
  }
  return value;
}

// Days since 1970-01-01 in the Gregorian calendar.
int64_t DaysFromCivil(int64_t year, int64_t month, int64_t day) {
  year -= month <= 2 ? 1 : 0;
  int64_t era = year / 400;
  int64_t of_era = year - era * 400;
  int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
  return era * 146'097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719'468;
}

// "2023-11-16 18:15:46.6805900", up to nine digits of a fraction or none.
absl::StatusOr<Time> ParseTimestamp(std::string_view text) {
  int64_t year = Digits(text, 0, 4), month = Digits(text, 5, 2), day = Digits(text, 8, 2);
  int64_t hour = Digits(text, 11, 2), minute = Digits(text, 14, 2), second = Digits(text, 17, 2);
  bool ok = year >= 1970 && month >= 1 && month <= 12 && day >= 1 && day <= 31 && hour >= 0 &&
            hour < 24 && minute >= 0 && minute < 60 && second >= 0 && second < 61 &&
            (text.size() == 19 || (text.size() > 20 && text[19] == '.'));
  int64_t fraction = 0;
  size_t digits = text.size() > 20 ? text.size() - 20 : 0;
  if (ok && digits > 0) fraction = digits <= 9 ? Digits(text, 20, digits) : -1;
  if (!ok || fraction < 0) {
    return InvalidArgument("TIMESTAMP is '", ToAbsl(text),
                           "', allowed: YYYY-MM-DD HH:MM:SS.fraction");
  }
  for (size_t i = digits; i < 9; ++i) fraction *= 10;
  int64_t seconds = DaysFromCivil(year, month, day) * kDaySeconds + hour * 3600 + minute * 60;
  return (seconds + second) * kSecond + fraction;
}

absl::StatusOr<TraceRow> ParseAzure(std::string_view line) {
  std::vector<absl::string_view> fields = absl::StrSplit(ToAbsl(line), ',');
  if (fields.size() != 3) return InvalidArgument(fields.size(), " fields, expected: 3");
  auto at = [&](size_t i) { return std::string_view(fields[i].data(), fields[i].size()); };
  TraceRow row;
  KVERN_ASSIGN_OR_RETURN(row.at, ParseTimestamp(at(0)));
  KVERN_ASSIGN_OR_RETURN(row.prompt_tokens, ParseTokens("ContextTokens", at(1)));
  KVERN_ASSIGN_OR_RETURN(row.output_tokens, ParseTokens("GeneratedTokens", at(2)));
  return row;
}

absl::StatusOr<int64_t> Number(const nlohmann::json& object, const char* field, int64_t min,
                               int64_t max) {
  auto it = object.find(field);
  if (it == object.end()) return InvalidArgument(field, " is missing");
  bool whole =
      it->is_number_integer() && !(it->is_number_unsigned() && it->get<uint64_t>() > INT64_MAX);
  if (!whole || it->get<int64_t>() < min || it->get<int64_t>() > max) {
    return InvalidArgument(field, " is ", it->dump(), ", allowed: ", min, " to ", max);
  }
  return it->get<int64_t>();
}

absl::StatusOr<TraceRow> ParseMooncake(std::string_view line) {
  nlohmann::json object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return InvalidArgument("not a JSON object");
  TraceRow row;
  KVERN_ASSIGN_OR_RETURN(int64_t ms, Number(object, "timestamp", 0, kDaySeconds * 1000 * 366));
  KVERN_ASSIGN_OR_RETURN(int64_t input, Number(object, "input_length", 1, kMaxTraceTokens));
  KVERN_ASSIGN_OR_RETURN(int64_t output, Number(object, "output_length", 1, kMaxTraceTokens));
  row.at = ms * kMillisecond;
  row.prompt_tokens = static_cast<uint32_t>(input);
  row.output_tokens = static_cast<uint32_t>(output);
  auto ids = object.find("hash_ids");
  if (ids == object.end()) return row;
  if (!ids->is_array()) return InvalidArgument("hash_ids is ", ids->dump(), ", allowed: a list");
  for (const nlohmann::json& id : *ids) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() > UINT32_MAX) {
      return InvalidArgument("an entry of hash_ids is ", id.dump(), ", allowed: 0 to ", UINT32_MAX);
    }
    row.prefix.push_back(id.get<uint32_t>());
  }
  return row;
}

}  // namespace

absl::StatusOr<std::vector<TraceRow>> ParseTrace(std::string_view text) {
  std::vector<TraceRow> rows;
  bool azure = false;
  uint64_t number = 0;
  for (absl::string_view piece : absl::StrSplit(ToAbsl(text), '\n')) {
    std::string_view line(piece.data(), piece.size());
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (number == 1 && line == kAzureHeader) {
      azure = true;
      continue;
    }
    if (line.empty()) continue;
    absl::StatusOr<TraceRow> row = azure ? ParseAzure(line) : ParseMooncake(line);
    if (!row.ok()) return InvalidArgument("line ", number, ": ", row.status().message());
    if (!rows.empty() && row->at < rows.back().at) {
      return InvalidArgument("line ", number, ": the timestamp is before that of the line before");
    }
    rows.push_back(*std::move(row));
  }
  if (rows.empty()) return InvalidArgument("no requests in it");
  Time first = rows[0].at;
  for (TraceRow& row : rows) row.at -= first;
  return rows;
}

absl::StatusOr<std::vector<TraceRow>> ReadTrace(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return InvalidArgument("'", path, "' is not a regular file");
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf())) return InvalidArgument("cannot read '", path, "'");
  absl::StatusOr<std::vector<TraceRow>> rows = ParseTrace(text.str());
  if (!rows.ok()) return InvalidArgument("'", path, "': ", rows.status().message());
  return rows;
}

}  // namespace kvern::sim
