// kvern-launch: a whole service on this host. Everything but the signals is in supervisor.cc.
#include <fcntl.h>
#include <signal.h>
#include <sys/signalfd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "cluster/launch/launch_config.h"
#include "cluster/launch/supervisor.h"

int main(int argc, char** argv) {
  kvern::LaunchConfig config = kvern::ParseLaunchConfig(argc, argv);
  // Blocked before any thread starts, so that they arrive at the signalfd and nowhere else.
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGINT);
  sigprocmask(SIG_BLOCK, &ending, nullptr);
  signal(SIGPIPE, SIG_IGN);
  kvern::Fd signals(signalfd(-1, &ending, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals.valid()) {
    std::fprintf(stderr, "kvern-launch: signalfd: %s\n", std::strerror(errno));
    return 1;
  }
  return kvern::Supervisor(std::move(config), signals.get()).Run();
}
