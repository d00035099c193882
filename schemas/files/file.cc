#include "schemas/files/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"

namespace kvern {

absl::StatusOr<std::unique_ptr<File>> File::Open(const std::string& path) {
  // O_NONBLOCK: opening a FIFO without a writer would otherwise wait for one.
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return ErrnoStatus(absl::StrCat("cannot open ", path), errno);
  auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  struct stat info = {};
  if (fstat(fd, &info) != 0) return ErrnoStatus(absl::StrCat("cannot stat ", path), errno);
  if (!S_ISREG(info.st_mode)) return InvalidArgument(path, " is not a regular file");
  std::move(close_fd).Cancel();
  return std::unique_ptr<File>(new File(path, static_cast<uint64_t>(info.st_size), fd));
}

File::~File() { close(fd_); }

absl::Status File::DoRead(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    ssize_t got = pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(absl::StrCat("cannot read ", name()), errno);
    if (got == 0) {
      return FailedPrecondition(name(), ": file shrank while it was read: it had ", size(),
                                " bytes and now ends at or before byte ", offset);
    }
    out = out.subspan(static_cast<size_t>(got));
    offset += static_cast<uint64_t>(got);
  }
  return absl::OkStatus();
}

}  // namespace kvern
