#include "cluster/base/options.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cluster/base/check.h"
#include "cluster/base/exit_codes.h"
#include "cluster/base/log.h"
#include "cluster/base/variables.h"

namespace kvern {
namespace {

struct Unit {
  std::string_view name;
  uint64_t factor;
};

constexpr Unit kSizeUnits[] = {{"", 1},
                               {"B", 1},
                               {"KiB", 1ull << 10},
                               {"MiB", 1ull << 20},
                               {"GiB", 1ull << 30},
                               {"TiB", 1ull << 40}};
constexpr Unit kTimeUnits[] = {{"us", kMicrosecond},
                               {"ms", kMillisecond},
                               {"s", kSecond},
                               {"m", 60 * kSecond},
                               {"h", 3600 * kSecond}};

// Splits "12KiB" into 12 and the factor of KiB; false if either part is off or the product
// overflows int64.
template <size_t N>
bool ParseWithUnit(std::string_view text, const Unit (&units)[N], uint64_t* value) {
  uint64_t number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data()) return false;
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  for (const Unit& known : units) {
    if (unit != known.name) continue;
    return !__builtin_mul_overflow(number, known.factor, value) &&
           *value <= static_cast<uint64_t>(INT64_MAX);
  }
  return false;
}

// The reverse: the largest unit that divides `value`.
template <size_t N>
std::string WithUnit(uint64_t value, const Unit (&units)[N]) {
  const Unit* largest = &units[0];
  for (const Unit& unit : units) {
    if (value >= unit.factor && value % unit.factor == 0) largest = &unit;
  }
  return absl::StrCat(value / largest->factor, ToAbsl(largest->name));
}

template <size_t N>
absl::Status CheckRange(std::string_view text, uint64_t value, uint64_t least, uint64_t most,
                        const Unit (&units)[N]) {
  if (value >= least && value <= most) return absl::OkStatus();
  std::string up_to = most == INT64_MAX ? " or more" : absl::StrCat(" to ", WithUnit(most, units));
  return InvalidArgument("'", ToAbsl(text), "', allowed: ", WithUnit(least, units), up_to);
}

// "kv-memory" -> "KVERN_KV_MEMORY"
std::string VariableOf(const std::string& name) {
  std::string variable = absl::StrCat("KVERN_", absl::AsciiStrToUpper(name));
  std::replace(variable.begin(), variable.end(), '-', '_');
  return variable;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text, const SizeRange& range) {
  uint64_t value = 0;
  if (!ParseWithUnit(text, kSizeUnits, &value)) {
    return InvalidArgument("'", ToAbsl(text),
                           "' is not a size such as 256MiB (B, KiB, MiB, GiB, TiB)");
  }
  KVERN_RETURN_IF_ERROR(CheckRange(text, value, range.least, range.most, kSizeUnits));
  return value;
}

std::string FormatSize(uint64_t bytes) {
  if (bytes < 1024) return absl::StrFormat("%u B", bytes);
  constexpr const char* kUnits[] = {"KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

absl::StatusOr<Duration> ParseDuration(std::string_view text, const TimeRange& range) {
  uint64_t value = 0;
  if (!ParseWithUnit(text, kTimeUnits, &value)) {
    return InvalidArgument("'", ToAbsl(text), "' is not a time such as 250ms (us, ms, s, m, h)");
  }
  KVERN_RETURN_IF_ERROR(CheckRange(text, value, static_cast<uint64_t>(range.least),
                                   static_cast<uint64_t>(range.most), kTimeUnits));
  return static_cast<Duration>(value);
}

absl::StatusOr<int64_t> ParseInteger(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    return InvalidArgument("'", ToAbsl(text), "' is not a whole number from ", min, " to ", max);
  }
  return value;
}

Options::Options(std::string program, std::string usage)
    : program_(std::move(program)), usage_(std::move(usage)) {}

void Options::Custom(std::string name, std::string value_name, std::string help,
                     std::function<absl::Status(std::string_view)> parse) {
  KVERN_CHECK(Find(name) == nullptr) << name;
  entries_.push_back({std::move(name), std::move(value_name), std::move(help), std::move(parse)});
}

void Options::String(std::string name, std::string value_name, std::string help,
                     std::string* target, Check check) {
  if (!target->empty()) absl::StrAppend(&help, " (default ", *target, ")");
  Custom(std::move(name), std::move(value_name), std::move(help),
         [target, check = std::move(check)](std::string_view text) -> absl::Status {
           if (text.empty()) return InvalidArgument("'' is empty");
           if (check != nullptr) KVERN_RETURN_IF_ERROR(check(text));
           *target = text;
           return absl::OkStatus();
         });
}

void Options::Choice(std::string name, std::vector<std::string> allowed, std::string help,
                     std::string* target) {
  if (!target->empty()) absl::StrAppend(&help, " (default ", *target, ")");
  std::string value_name = absl::StrJoin(allowed, "|");
  Custom(std::move(name), value_name, std::move(help),
         [target, allowed = std::move(allowed)](std::string_view text) {
           if (std::find(allowed.begin(), allowed.end(), text) == allowed.end()) {
             return InvalidArgument("'", ToAbsl(text),
                                    "', allowed: ", absl::StrJoin(allowed, ", "));
           }
           *target = text;
           return absl::OkStatus();
         });
}

void Options::Count(std::string name, std::string value_name, std::string help, int64_t* target,
                    int64_t min, int64_t max) {
  if (*target == INT64_MAX) {
    absl::StrAppend(&help, " (default: no limit)");
  } else if (*target != 0) {
    absl::StrAppend(&help, " (default ", *target, ")");
  }
  Custom(std::move(name), std::move(value_name), std::move(help),
         [target, min, max](std::string_view text) -> absl::Status {
           KVERN_ASSIGN_OR_RETURN(*target, ParseInteger(text, min, max));
           return absl::OkStatus();
         });
}

void Options::Size(std::string name, std::string help, uint64_t* target, const SizeRange& range) {
  Custom(std::move(name), "SIZE", std::move(help),
         [target, range](std::string_view text) -> absl::Status {
           KVERN_ASSIGN_OR_RETURN(*target, ParseSize(text, range));
           return absl::OkStatus();
         });
}

void Options::Time(std::string name, std::string help, Duration* target, const TimeRange& range) {
  Custom(std::move(name), "TIME", std::move(help),
         [target, range](std::string_view text) -> absl::Status {
           KVERN_ASSIGN_OR_RETURN(*target, ParseDuration(text, range));
           return absl::OkStatus();
         });
}

void Options::Flag(std::string name, std::string help, bool* target) {
  Custom(std::move(name), "", std::move(help), [target](std::string_view) {
    *target = true;
    return absl::OkStatus();
  });
}

void Options::Logging() {
  logging_ = true;
  Choice("log-level", {"debug", "info", "warning", "error"}, "least level that is logged",
         &log_level_);
  Choice("log-format", {"text", "json"}, "form of the log lines on stderr", &log_format_);
}

void Options::Exclusive(std::string first, std::string second) {
  KVERN_CHECK(Find(first) != nullptr && Find(second) != nullptr) << first << " " << second;
  exclusive_.emplace_back(std::move(first), std::move(second));
}

Options::Entry* Options::Find(std::string_view name) {
  for (Entry& entry : entries_) {
    if (entry.name == name) return &entry;
  }
  return nullptr;
}

bool Options::Given(std::string_view name) const {
  const Entry* entry = const_cast<Options*>(this)->Find(name);
  return entry != nullptr && entry->given;
}

absl::Status Options::Parse(const std::vector<std::string>& arguments,
                            std::vector<std::string>* positional) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    std::string_view argument = arguments[i];
    if (!argument.starts_with("--") || argument.size() == 2) {
      if (positional == nullptr || argument.starts_with("-")) {
        return InvalidArgument("unexpected argument '", ToAbsl(argument), "' (see --help)");
      }
      positional->emplace_back(argument);
      continue;
    }
    size_t equals = argument.find('=');
    std::string_view name =
        argument.substr(2, equals == std::string_view::npos ? equals : equals - 2);
    Entry* entry = Find(name);
    if (entry == nullptr)
      return InvalidArgument("--", ToAbsl(name), ": unknown option (see --help)");
    if (entry->given) return InvalidArgument("--", entry->name, ": given twice");
    entry->given = true;
    std::string_view value;
    if (equals != std::string_view::npos) {
      if (entry->value_name.empty()) return InvalidArgument("--", entry->name, ": takes no value");
      value = argument.substr(equals + 1);
    } else if (!entry->value_name.empty()) {
      if (i + 1 == arguments.size()) return InvalidArgument("--", entry->name, ": needs a value");
      value = arguments[++i];
    }
    absl::Status parsed = entry->parse(value);
    if (!parsed.ok()) return InvalidArgument("--", entry->name, ": ", parsed.message());
  }
  return CheckExclusive();
}

absl::Status Options::CheckExclusive() const {
  for (const auto& [first, second] : exclusive_) {
    if (!Given(first) || !Given(second)) continue;
    return InvalidArgument("--", second, ": not together with --", first);
  }
  return absl::OkStatus();
}

// The command line gives what excludes it.
bool Options::Silenced(const Entry& entry) const {
  for (const auto& [first, second] : exclusive_) {
    if (entry.name == first && Given(second)) return true;
    if (entry.name == second && Given(first)) return true;
  }
  return false;
}

absl::Status Options::ParseEnvironment(const Lookup& lookup) {
  std::vector<Entry*> open;
  for (Entry& entry : entries_) {
    if (!entry.given && !Silenced(entry)) open.push_back(&entry);
  }
  for (Entry* entry : open) {
    std::string variable = VariableOf(entry->name);
    const char* value = lookup(variable.c_str());
    if (value == nullptr || *value == '\0') continue;
    if (entry->value_name.empty()) {
      std::string_view word = value;
      if (word != "0" && word != "1") {
        return InvalidArgument(variable, ": '", ToAbsl(word), "', allowed: 0, 1");
      }
      if (word == "0") continue;
    }
    absl::Status parsed = entry->parse(value);
    if (!parsed.ok()) return InvalidArgument(variable, ": ", parsed.message());
    entry->given = true;
  }
  return CheckExclusive();
}

void KeepStandardDescriptors() {
  for (int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free descriptor, and so this one. The wrong way round, so that its use fails.
    int opened = open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    KVERN_CHECK_EQ(opened, fd);
  }
}

void Options::ParseOrExit(int argc, char** argv, std::vector<std::string>* positional) {
  KeepStandardDescriptors();
  std::vector<std::string> arguments(argv + 1, argv + argc);
  for (const std::string& argument : arguments) {
    if (argument == "--help") {
      std::fputs(Help().c_str(), stdout);
      std::exit(0);
    }
    if (argument == "--version") {
      std::printf("%s %s\n", program_.c_str(), KVERN_VERSION);
      if (!version_note_.empty()) std::printf("%s\n", version_note_.c_str());
      std::exit(0);
    }
  }
  absl::Status parsed = Parse(arguments, positional);
  if (parsed.ok() && environment_)
    parsed = ParseEnvironment([](const char* n) { return std::getenv(n); });
  if (!parsed.ok()) {
    std::fprintf(stderr, "%s: %s\n", program_.c_str(), std::string(parsed.message()).c_str());
    std::exit(kUsageExit);
  }
  if (!logging_) return;
  InitLog(program_, *ParseLogLevel(log_level_), *ParseLogFormat(log_format_));
  if (environment_) WarnOfUnknownVariables();
}

std::string Options::Help() const {
  std::string help = absl::StrCat("usage: ", usage_, "\n");
  size_t width = 0;
  std::vector<std::string> left;
  for (const Entry& entry : entries_) {
    left.push_back(
        absl::StrCat("  --", entry.name, entry.value_name.empty() ? "" : " ", entry.value_name));
    if (left.back().size() <= 34) width = std::max(width, left.back().size());
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    size_t pad = left[i].size() < width ? width - left[i].size() : 0;
    absl::StrAppend(&help, left[i], std::string(pad + 2, ' '), entries_[i].help, "\n");
  }
  absl::StrAppend(&help, "  --help, --version\n");
  if (environment_) {
    absl::StrAppend(&help, "Also from the environment, where the command line does not say it: --",
                    entries_[0].name, " as ", VariableOf(entries_[0].name), " and so on.\n");
  }
  return help;
}

}  // namespace kvern
