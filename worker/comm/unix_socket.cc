#include "worker/comm/unix_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "cluster/base/clock.h"

namespace kvern {

FileHandle& FileHandle::operator=(FileHandle&& other) noexcept {
  FileHandle old(std::exchange(fd_, other.Release()));
  return *this;
}

FileHandle::~FileHandle() {
  if (fd_ >= 0) close(fd_);
}

int FileHandle::Release() { return std::exchange(fd_, -1); }

absl::StatusOr<AbstractAddress> ParseAbstractAddress(const std::string& name) {
  AbstractAddress result;
  if (name.size() < 2 || name[0] != '@' || name.size() > sizeof(result.address.sun_path)) {
    return InvalidArgument("rendezvous '", name, "' is not @NAME with 1 to ",
                           sizeof(result.address.sun_path) - 1, " characters");
  }
  result.address.sun_family = AF_UNIX;
  std::memcpy(result.address.sun_path + 1, name.data() + 1, name.size() - 1);  // first byte: 0
  result.size = static_cast<unsigned>(offsetof(sockaddr_un, sun_path) + name.size());
  return result;
}

absl::StatusOr<FileHandle> NewSeqPacketSocket() {
  FileHandle handle(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!handle.valid()) return ErrnoStatus("socket", errno);
  return handle;
}

bool PeerIsSameUser(int socket) {
  ucred peer{};
  socklen_t size = sizeof(peer);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.uid == geteuid();
}

bool WaitForEvents(int socket, short events, Duration timeout) {
  Time deadline = MonotonicNow() + timeout;
  pollfd entry{socket, events, 0};
  while (true) {
    Duration left = std::max<Duration>(0, deadline - MonotonicNow());
    int64_t ms = std::min<int64_t>((left + kMillisecond - 1) / kMillisecond, INT_MAX);
    int ready = poll(&entry, 1, static_cast<int>(ms));
    if (ready > 0) return true;
    if (ready == 0 && left == 0) return false;
    if (ready < 0 && errno != EINTR) return false;
  }
}

bool SendPacket(int socket, const void* data, size_t bytes, int file) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (file >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes);
}

bool ReceivePacket(int socket, void* data, size_t bytes, FileHandle* file) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  ssize_t received = recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received < 0) return false;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header != nullptr && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
      header->cmsg_len == CMSG_LEN(sizeof(int))) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(int));
    FileHandle passed(fd);
    if (file != nullptr) *file = std::move(passed);
  }
  return received == static_cast<ssize_t>(bytes) && (message.msg_flags & MSG_TRUNC) == 0;
}

}  // namespace kvern
