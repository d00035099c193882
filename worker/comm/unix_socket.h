// The few calls on abstract unix sockets (SOCK_SEQPACKET) that shm.cc needs.
#pragma once

#include <sys/un.h>

#include <cstddef>
#include <string>

#include "cluster/base/status.h"
#include "cluster/base/time.h"

namespace kvern {

// A file descriptor that is closed with its owner.
class FileHandle {
 public:
  explicit FileHandle(int fd = -1) : fd_(fd) {}
  FileHandle(FileHandle&& other) noexcept : fd_(other.Release()) {}
  FileHandle& operator=(FileHandle&& other) noexcept;
  ~FileHandle();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  int Release();

 private:
  int fd_;
};

// "@name" in the abstract namespace: no file, gone with the socket.
struct AbstractAddress {
  sockaddr_un address{};
  unsigned size = 0;
};
absl::StatusOr<AbstractAddress> ParseAbstractAddress(const std::string& name);

absl::StatusOr<FileHandle> NewSeqPacketSocket();  // non-blocking, closed on exec

// True when the other end of the connection runs as this process's user.
bool PeerIsSameUser(int socket);

// True when poll() reports `events` (or a hang-up) within `timeout`.
bool WaitForEvents(int socket, short events, Duration timeout);

// One packet, with an optional file descriptor (-1: none) beside it. False: the peer is gone.
bool SendPacket(int socket, const void* data, size_t bytes, int file);
// Fills `data` when a packet of exactly `bytes` is there; `file` (may be null) takes the descriptor
// that came with it. False: no such packet, or the peer is gone.
bool ReceivePacket(int socket, void* data, size_t bytes, FileHandle* file);

}  // namespace kvern
