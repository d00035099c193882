#include "cluster/base/stderr_writer.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <string>

namespace kvern {
namespace {

bool TakesMore() {
  pollfd entry = {STDERR_FILENO, POLLOUT, 0};
  return poll(&entry, 1, 0) > 0 && (entry.revents & POLLOUT) != 0;
}

class StderrWriter {
 public:
  void Write(std::string_view lines) {
    const std::lock_guard lock(mutex_);
    if (lost_ > 0) {
      const std::string said = (in_line_ ? "\n(" : "(") + std::to_string(lost_) +
                               " log lines were lost: nobody reads)\n";
      if (Send(said)) lost_ = 0;
    }
    if (lost_ > 0 || !Send(lines)) lost_ += std::count(lines.begin(), lines.end(), '\n');
  }

 private:
  // A pipe that takes anything takes as much as this at once.
  bool Send(std::string_view text) {
    while (!text.empty()) {
      if (!TakesMore()) return false;
      const ssize_t wrote =
          write(STDERR_FILENO, text.data(), std::min<size_t>(text.size(), PIPE_BUF));
      if (wrote < 0 && errno == EINTR) continue;
      if (wrote <= 0)
        return true;  // closed, or its disk is full: no later line has a better chance
      in_line_ = text[static_cast<size_t>(wrote) - 1] != '\n';
      text.remove_prefix(static_cast<size_t>(wrote));
    }
    return true;
  }

  std::mutex mutex_;
  int64_t lost_ = 0;
  bool in_line_ = false;  // what was sent last ends within a line
};

}  // namespace

void WriteToStderr(std::string_view lines) {
  static auto* writer = new StderrWriter;  // Never destroyed: threads may log during exit.
  writer->Write(lines);
}

}  // namespace kvern
