// One child process: spawned so that it cannot outlive us, watched by a pidfd, heard through one
// pipe.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "cluster/base/status.h"

namespace kvern {

// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(other.Release()) {}
  Fd& operator=(Fd&& other) noexcept;
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { Reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();
  void Reset();

 private:
  int fd_ = -1;
};

// A pipe, close-on-exec at both ends; the read end does not block.
struct Pipe {
  Fd read;
  Fd write;

  static absl::StatusOr<Pipe> Create();
};

// How a process ended.
struct ExitStatus {
  bool signalled = false;
  int code = 0;  // the exit code, or the signal's number

  bool Clean() const { return !signalled && code == 0; }
  // "exited with status 1" or "killed by signal 9 (Killed)".
  std::string ToString() const;
};

// A spawned child. The kernel sends it SIGKILL when the thread that spawned it ends, whatever ends
// it; it has its own process group, so that Ctrl-C at the terminal reaches only the parent.
class ChildProcess {
 public:
  // Runs argv[0] (a path) with its stdin empty, its stdout nowhere and its stderr in a pipe. With
  // `ready_fd`, the child finds that descriptor as number kReadyFd.
  static constexpr int kReadyFd = 3;
  static absl::StatusOr<ChildProcess> Spawn(const std::vector<std::string>& argv,
                                            const Fd* ready_fd = nullptr);

  ChildProcess(ChildProcess&&) = default;
  ChildProcess& operator=(ChildProcess&&) = default;
  // A child that still runs is killed and waited for.
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  int pidfd() const { return pidfd_.get(); }
  int output_fd() const { return output_.get(); }
  bool running() const { return pidfd_.valid() && !exit_.has_value(); }
  const std::optional<ExitStatus>& exit() const { return exit_; }

  // No effect on a child that has ended.
  void Signal(int signal_number) const;
  // The same, queued (SI_QUEUE): it tells a child that may have had that signal itself.
  void PassOn(int signal_number) const;

  // Collects the exit status if the child has ended; true once it has. Never blocks.
  bool Reap();

 private:
  ChildProcess(pid_t pid, Fd pidfd, Fd output)
      : pid_(pid), pidfd_(std::move(pidfd)), output_(std::move(output)) {}

  pid_t pid_ = 0;
  Fd pidfd_;
  Fd output_;
  std::optional<ExitStatus> exit_;
};

}  // namespace kvern
