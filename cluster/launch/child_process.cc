#include "cluster/launch/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace kvern {
namespace {

// Descriptors of ours start here, so that none collides with those a child is given (0 to
// kReadyFd).
constexpr int kFirstOwnFd = 10;

// Everything a child needs, prepared before fork: after it only async-signal-safe calls are
// allowed.
struct ChildPlan {
  std::vector<char*> argv;
  int null_fd = -1;
  int output_fd = -1;
  int ready_fd = -1;
  pid_t parent = 0;
};

[[noreturn]] void RunChild(const ChildPlan& plan) {
  // The parent may have died between fork and prctl: then nobody would ever kill us.
  if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != plan.parent) _exit(127);
  setpgid(0, 0);
  signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  bool ready = dup2(plan.null_fd, 0) >= 0 && dup2(plan.null_fd, 1) >= 0 &&
               dup2(plan.output_fd, 2) >= 0 &&
               (plan.ready_fd < 0 || dup2(plan.ready_fd, ChildProcess::kReadyFd) >= 0);
  unsigned first_unused = plan.ready_fd < 0 ? 3 : ChildProcess::kReadyFd + 1;
  if (ready && syscall(SYS_close_range, first_unused, ~0u, 0) == 0) {
    execv(plan.argv[0], plan.argv.data());
  }
  const char* program = plan.argv[0];
  const char* reason = strerror(errno);
  for (const char* part : {program, ": cannot be started: ", reason, "\n"}) {
    if (write(2, part, strlen(part)) < 0) break;
  }
  _exit(127);
}

absl::StatusOr<Fd> MoveUp(int fd) {
  Fd low(fd);
  int high = fcntl(fd, F_DUPFD_CLOEXEC, kFirstOwnFd);
  if (high < 0) return ErrnoStatus("fcntl(F_DUPFD_CLOEXEC)", errno);
  return Fd(high);
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = other.Release();
  }
  return *this;
}

int Fd::Release() {
  int fd = fd_;
  fd_ = -1;
  return fd;
}

void Fd::Reset() {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
}

absl::StatusOr<Pipe> Pipe::Create() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus("pipe2", errno);
  Fd write_end(ends[1]);
  Pipe pipe;
  KVERN_ASSIGN_OR_RETURN(pipe.read, MoveUp(ends[0]));
  KVERN_ASSIGN_OR_RETURN(pipe.write, MoveUp(write_end.Release()));
  if (fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK) != 0) return ErrnoStatus("fcntl", errno);
  return pipe;
}

std::string ExitStatus::ToString() const {
  if (!signalled) return absl::StrCat("exited with status ", code);
  return absl::StrCat("killed by signal ", code, " (", strsignal(code), ")");
}

absl::StatusOr<ChildProcess> ChildProcess::Spawn(const std::vector<std::string>& argv,
                                                 const Fd* ready_fd) {
  int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
  if (null_fd < 0) return ErrnoStatus("/dev/null", errno);
  KVERN_ASSIGN_OR_RETURN(Fd null, MoveUp(null_fd));
  KVERN_ASSIGN_OR_RETURN(Pipe output, Pipe::Create());
  ChildPlan plan;
  for (const std::string& argument : argv) plan.argv.push_back(const_cast<char*>(argument.c_str()));
  plan.argv.push_back(nullptr);
  plan.null_fd = null.get();
  plan.output_fd = output.write.get();
  plan.ready_fd = ready_fd == nullptr ? -1 : ready_fd->get();
  plan.parent = getpid();
  pid_t pid = fork();
  if (pid < 0) return ErrnoStatus("fork", errno);
  if (pid == 0) RunChild(plan);
  long pidfd = syscall(SYS_pidfd_open, pid, 0);
  if (pidfd < 0) {
    absl::Status status = ErrnoStatus("pidfd_open", errno);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return status;
  }
  return ChildProcess(pid, Fd(static_cast<int>(pidfd)), std::move(output.read));
}

ChildProcess::~ChildProcess() {
  if (!running()) return;
  Signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::Signal(int signal_number) const {
  // By pidfd, not by pid: it can never hit a stranger that got the number later.
  if (running()) syscall(SYS_pidfd_send_signal, pidfd_.get(), signal_number, nullptr, 0);
}

void ChildProcess::PassOn(int signal_number) const {
  siginfo_t info{};
  info.si_signo = signal_number;
  info.si_code = SI_QUEUE;
  info.si_pid = getpid();
  info.si_uid = getuid();
  if (running()) syscall(SYS_pidfd_send_signal, pidfd_.get(), signal_number, &info, 0);
}

bool ChildProcess::Reap() {
  if (exit_.has_value()) return true;
  siginfo_t info{};
  if (waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG) != 0 ||
      info.si_pid == 0) {
    return false;
  }
  exit_ = ExitStatus{info.si_code != CLD_EXITED, info.si_status};
  return true;
}

}  // namespace kvern
