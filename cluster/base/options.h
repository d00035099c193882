// Command lines: GNU long options from one table, `--help` on one screen, clear refusals.
//
//   Options options("kvern-run", "kvern-run --model PATH < requests.jsonl > results.jsonl");
//   options.String("model", "PATH", "a GGUF file or a folder with config.json", &config.model);
//   options.Count("tp", "N", "tensor-parallel ranks", &config.tp, 1, 64);
//   options.ParseOrExit(argc, argv);          // --help, --version exit 0; a usage error exits 2
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"

namespace kvern {

// What a value may be, both ends included; errors name them. Without `most`, what an int64 holds.
struct SizeRange {
  uint64_t least = 0;
  uint64_t most = INT64_MAX;
};
struct TimeRange {
  Duration least = 0;
  Duration most = INT64_MAX;
};

// "4096", "64KiB", "256MiB", "2GiB", "1TiB" -> bytes. Fractions and other units are refused.
absl::StatusOr<uint64_t> ParseSize(std::string_view text, const SizeRange& range = {});

// Bytes for people: "512 B", "1.5 KiB", "48.3 MiB".
std::string FormatSize(uint64_t bytes);

// "250ms", "10s", "2m", "1h", "500us" -> nanoseconds. A number without a unit is refused.
absl::StatusOr<Duration> ParseDuration(std::string_view text, const TimeRange& range = {});

// A whole decimal number in [min, max]; the error names the range.
absl::StatusOr<int64_t> ParseInteger(std::string_view text, int64_t min, int64_t max);

// Closed standard descriptors are opened, so that no file or socket opened later becomes this
// program's input, output or log. Reading and writing them still fails.
void KeepStandardDescriptors();

class Options {
 public:
  // `usage` is the first line of --help, after "usage: ".
  Options(std::string program, std::string usage);

  // Each registers `--name VALUE`; the target keeps its value when the option is absent, and --help
  // shows that value as the default, but for Size and Time, whose `help` says it. A Count's largest
  // value is "no limit"; 0 is not shown.
  // A string is not empty, and what `check` allows if there is one.
  using Check = std::function<absl::Status(std::string_view)>;
  void String(std::string name, std::string value_name, std::string help, std::string* target,
              Check check = nullptr);
  void Choice(std::string name, std::vector<std::string> allowed, std::string help,
              std::string* target);
  void Count(std::string name, std::string value_name, std::string help, int64_t* target,
             int64_t min, int64_t max);
  void Size(std::string name, std::string help, uint64_t* target, const SizeRange& range);
  void Time(std::string name, std::string help, Duration* target, const TimeRange& range);
  // `--name` without a value sets the target to true.
  void Flag(std::string name, std::string help, bool* target);
  // A parser of one's own; its error text follows "program: --name: ".
  void Custom(std::string name, std::string value_name, std::string help,
              std::function<absl::Status(std::string_view)> parse);

  // Registers --log-level and --log-format and remembers to call InitLog after parsing.
  void Logging();

  // Of the two only one may be given. One on the command line silences the other's variable.
  void Exclusive(std::string first, std::string second);

  // What --version says after the program's version, a line of its own.
  void VersionNote(std::string note) { version_note_ = std::move(note); }

  // ParseOrExit reads the environment, too; --help says so. With Logging, it warns of variables
  // that are nobody's.
  void AlsoFromEnvironment() { environment_ = true; }

  // Refuses unknown options, missing and extra values and repeated options.
  // Positional arguments are refused unless `positional` is given.
  absl::Status Parse(const std::vector<std::string>& arguments,
                     std::vector<std::string>* positional = nullptr);

  // Options that Parse did not find, from KVERN_ and their name: --kv-memory is KVERN_KV_MEMORY. A
  // flag's value is 1 or 0. An empty variable counts as none. Errors name the variable.
  using Lookup = std::function<const char*(const char*)>;  // as std::getenv
  absl::Status ParseEnvironment(const Lookup& lookup);

  // Parse for main(): prints help or version and exits 0, or the error and exits 2. Keeps the
  // standard descriptors.
  void ParseOrExit(int argc, char** argv, std::vector<std::string>* positional = nullptr);

  // True if the option was given, on the command line or in the environment.
  bool Given(std::string_view name) const;

  std::string Help() const;

 private:
  struct Entry {
    std::string name;
    std::string value_name;  // Empty: a flag.
    std::string help;
    std::function<absl::Status(std::string_view)> parse;
    bool given = false;
  };
  using Pair = std::pair<std::string, std::string>;

  Entry* Find(std::string_view name);
  bool Silenced(const Entry& entry) const;
  absl::Status CheckExclusive() const;

  std::string program_;
  std::string usage_;
  std::string version_note_;
  std::vector<Entry> entries_;
  std::vector<Pair> exclusive_;
  bool environment_ = false;
  bool logging_ = false;
  std::string log_level_ = "info";
  std::string log_format_ = "text";
};

}  // namespace kvern
