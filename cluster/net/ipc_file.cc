#include "cluster/net/ipc_file.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvern {
namespace {

// Empty for endpoints that have no file: tcp, and the abstract ipc://@NAME.
std::string PathOf(std::string_view endpoint) {
  if (!endpoint.starts_with("ipc://") || endpoint.starts_with("ipc://@")) return "";
  return std::string(endpoint.substr(6));
}

// Fails with ECONNREFUSED where nobody listens; one whose queue is full does listen.
bool SomebodyListens(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return false;
  std::memcpy(address.sun_path, path.data(), path.size());
  int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return false;
  int connected = connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  bool refused = connected != 0 && errno == ECONNREFUSED;
  close(fd);
  return !refused;
}

// Of what lies at `path`; nothing: it cannot be looked at.
std::optional<FileIdentity> IdentityOf(const std::string& path) {
  struct statx found {};
  if (statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW, STATX_INO | STATX_BTIME, &found) != 0) {
    return std::nullopt;
  }
  return FileIdentity{found.stx_dev_major, found.stx_dev_minor, found.stx_ino,
                      found.stx_btime.tv_sec, found.stx_btime.tv_nsec};
}

}  // namespace

absl::Status CheckIpcFile(std::string_view endpoint) {
  std::string path = PathOf(endpoint);
  struct stat found {};
  if (path.empty() || lstat(path.c_str(), &found) != 0) return absl::OkStatus();
  if (!S_ISSOCK(found.st_mode)) {
    return FailedPrecondition("cannot listen on ", ToAbsl(endpoint),
                              ": a file that is not a socket lies there");
  }
  if (!SomebodyListens(path)) return absl::OkStatus();
  return Unavailable("cannot listen on ", ToAbsl(endpoint), ": somebody listens there");
}

IpcFile::IpcFile(std::string_view endpoint) : path_(PathOf(endpoint)) {
  if (!path_.empty()) identity_ = IdentityOf(path_);
}

IpcFile::IpcFile(IpcFile&& other) noexcept
    : path_(std::move(other.path_)), identity_(std::exchange(other.identity_, std::nullopt)) {}

IpcFile& IpcFile::operator=(IpcFile&& other) noexcept {
  if (this == &other) return *this;
  Remove();
  path_ = std::move(other.path_);
  identity_ = std::exchange(other.identity_, std::nullopt);
  return *this;
}

void IpcFile::Remove() {
  if (identity_.has_value() && IdentityOf(path_) == identity_) unlink(path_.c_str());
}

}  // namespace kvern
