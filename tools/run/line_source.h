// Lines from a file descriptor, without waiting for more than is there.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "cluster/base/status.h"

namespace kvern {

class LineSource {
 public:
  struct Line {
    std::string text;       // without its newline; empty if too long
    bool too_long = false;  // more than the limit; the rest of it is skipped
  };

  // Does not own `fd`.
  LineSource(int fd, size_t max_line_bytes) : fd_(fd), max_line_bytes_(max_line_bytes) {}

  // One read of the descriptor. Call when it is readable and Next has nothing more.
  absl::Status Read();

  // The next whole line that has been read; at the end of the input also one without a newline.
  std::optional<Line> Next();

  // Everything was read; Next may still have lines.
  bool at_end() const { return at_end_; }

  int fd() const { return fd_; }

 private:
  int fd_;
  size_t max_line_bytes_;
  std::string buffer_;
  size_t begin_ = 0;       // of the next line in buffer_
  size_t searched_ = 0;    // no newline in [begin_, searched_)
  bool skipping_ = false;  // inside a line that is too long
  bool at_end_ = false;
};

}  // namespace kvern
