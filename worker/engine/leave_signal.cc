#include "worker/engine/leave_signal.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

#include "cluster/base/check.h"

namespace kvern {
namespace {

static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler may use them");
std::atomic<bool> told_to_leave{false};
std::atomic<int> event_fd{-1};

// Only what may be called anywhere: it interrupts whatever thread the system chose.
void OnSigterm(int /*signal*/) {
  const int saved_errno = errno;
  told_to_leave = true;
  const uint64_t one = 1;
  // It cannot fail: the counter is far from full. The flag alone would do, a heartbeat later.
  [[maybe_unused]] ssize_t written = write(event_fd, &one, sizeof(one));
  errno = saved_errno;
}

}  // namespace

absl::Status LeaveSignal::Install() {
  KVERN_CHECK_EQ(event_fd.load(), -1);
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) return ErrnoStatus("eventfd", errno);
  event_fd = fd;
  struct sigaction action {};
  action.sa_handler = OnSigterm;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  KVERN_CHECK_EQ(sigaction(SIGTERM, &action, nullptr), 0);
  return absl::OkStatus();
}

bool LeaveSignal::told() { return told_to_leave; }
int LeaveSignal::fd() { return event_fd; }

}  // namespace kvern
