// kvern-run as a process with pipes.
#pragma once

#include <sys/types.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvern {

class RunProgram {
 public:
  // Starts it with these arguments.
  explicit RunProgram(const std::vector<std::string>& arguments);
  // Kills it if it still runs.
  ~RunProgram();

  void Write(const std::string& line);
  void CloseInput();
  // The next result; null once the output has ended.
  nlohmann::json ReadResult();
  // Waits for its end: the exit code, or -1 after a signal.
  int Wait();
  // Everything on stderr. REQUIRES: Wait was called.
  std::string Errors() const;

 private:
  pid_t pid_ = -1;
  int input_ = -1;
  int output_ = -1;
  std::string errors_path_;
  std::string buffer_;
};

struct RunOutcome {
  std::vector<nlohmann::json> results;
  int exit_code = -1;
  std::string errors;
};

// All of it: writes the lines, closes the input, reads all results.
RunOutcome RunLines(const std::vector<std::string>& arguments,
                    const std::vector<nlohmann::json>& lines);

}  // namespace kvern
