#include "tests/tools/run/run_program.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

#include "cluster/base/check.h"

namespace kvern {
namespace {

std::string ProgramPath() {
  const char* folder = std::getenv("KVERN_BIN_DIR");
  KVERN_CHECK(folder != nullptr) << "ctest sets KVERN_BIN_DIR to where the programs are";
  return std::string(folder) + "/kvern-run";
}

std::string NewErrorsPath() {
  static std::atomic<int> next{0};
  return std::string("/tmp/run_program_test.") + std::to_string(getpid()) + "." +
         std::to_string(next++) + ".err";
}

}  // namespace

RunProgram::RunProgram(const std::vector<std::string>& arguments) : errors_path_(NewErrorsPath()) {
  signal(SIGPIPE, SIG_IGN);  // it may end before it has read everything
  int in[2];
  int out[2];
  KVERN_CHECK(pipe2(in, O_CLOEXEC) == 0 && pipe2(out, O_CLOEXEC) == 0);
  std::string program = ProgramPath();
  std::vector<char*> argv = {program.data()};
  std::vector<std::string> copies = arguments;
  for (std::string& argument : copies) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_ = fork();
  KVERN_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    int errors = open(errors_path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(in[0], STDIN_FILENO);
    dup2(out[1], STDOUT_FILENO);
    dup2(errors, STDERR_FILENO);
    execv(program.c_str(), argv.data());
    _exit(127);
  }
  close(in[0]);
  close(out[1]);
  input_ = in[1];
  output_ = out[0];
}

RunProgram::~RunProgram() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CloseInput();
  close(output_);
  std::remove(errors_path_.c_str());
}

void RunProgram::Write(const std::string& line) {
  std::string text = line + "\n";
  size_t written = 0;
  while (written < text.size()) {
    ssize_t count = write(input_, text.data() + written, text.size() - written);
    if (count <= 0) return;  // it has ended; its results say how
    written += static_cast<size_t>(count);
  }
}

void RunProgram::CloseInput() {
  if (input_ >= 0) close(input_);
  input_ = -1;
}

nlohmann::json RunProgram::ReadResult() {
  while (true) {
    size_t newline = buffer_.find('\n');
    if (newline != std::string::npos) {
      nlohmann::json result = nlohmann::json::parse(buffer_.substr(0, newline));
      buffer_.erase(0, newline + 1);
      return result;
    }
    char chunk[4096];
    ssize_t count = read(output_, chunk, sizeof(chunk));
    if (count <= 0) return nullptr;
    buffer_.append(chunk, static_cast<size_t>(count));
  }
}

int RunProgram::Wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

std::string RunProgram::Errors() const {
  std::ifstream file(errors_path_, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

RunOutcome RunLines(const std::vector<std::string>& arguments,
                    const std::vector<nlohmann::json>& lines) {
  RunProgram program(arguments);
  // Beside the reading: neither pipe may fill up.
  std::thread writer([&] {
    for (const nlohmann::json& line : lines) {
      program.Write(line.is_string() ? line.get<std::string>() : line.dump());
    }
    program.CloseInput();
  });
  RunOutcome outcome;
  while (true) {
    nlohmann::json result = program.ReadResult();
    if (result.is_null()) break;
    outcome.results.push_back(std::move(result));
  }
  writer.join();
  outcome.exit_code = program.Wait();
  outcome.errors = program.Errors();
  return outcome;
}

}  // namespace kvern
