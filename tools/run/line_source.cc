#include "tools/run/line_source.h"

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace kvern {

absl::Status LineSource::Read() {
  constexpr size_t kChunk = 256 << 10;
  buffer_.erase(0, begin_);
  searched_ -= begin_;
  begin_ = 0;
  size_t old_size = buffer_.size();
  buffer_.resize(old_size + kChunk);
  ssize_t count = read(fd_, buffer_.data() + old_size, kChunk);
  buffer_.resize(old_size + (count > 0 ? static_cast<size_t>(count) : 0));
  if (count < 0 && errno != EINTR && errno != EAGAIN) {
    return ErrnoStatus("reading the requests", errno);
  }
  at_end_ = count == 0;
  return absl::OkStatus();
}

std::optional<LineSource::Line> LineSource::Next() {
  size_t newline = buffer_.find('\n', searched_);
  bool whole = newline != std::string::npos;
  size_t end = whole ? newline : buffer_.size();
  bool over = end - begin_ > max_line_bytes_;
  if (!whole && !at_end_) {
    searched_ = end;
    if (over) {  // Keep none of it.
      skipping_ = true;
      begin_ = end;
    }
    return std::nullopt;
  }
  if (!whole && begin_ == end && !skipping_) return std::nullopt;
  Line line;
  line.too_long = skipping_ || over;
  if (!line.too_long) line.text = buffer_.substr(begin_, end - begin_);
  skipping_ = false;
  begin_ = searched_ = whole ? end + 1 : end;
  return line;
}

}  // namespace kvern
