#include "worker/comm/shm.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "cluster/base/clock.h"
#include "worker/comm/memory_communicator.h"
#include "worker/comm/unix_socket.h"

namespace kvern {
namespace {

// The first packet of a connection, from rank 1 .. world-1 to rank 0.
struct Greeting {
  uint32_t magic;
  uint32_t rank;
  uint32_t world;
  uint32_t slot_bytes;
};
// "KVC" and the version of the memory layout: ranks of different builds must not meet.
constexpr uint32_t kMagic = 0x4b564301;

// Rank 0's answer; with kWelcome comes the memory file.
enum class Answer : uint32_t { kWelcome = 1, kRefused = 2 };

constexpr Duration kRetryInterval = 10 * kMillisecond;

// Notices a dead peer by its end of the meeting's connection: the kernel closes it with the
// process. Rank 0 is connected to all; the others to rank 0, which tells them.
class ConnectionWatch final : public PeerWatch {
 public:
  // connections[r] leads to rank r; invalid where there is none.
  explicit ConnectionWatch(std::vector<FileHandle> connections)
      : connections_(std::move(connections)) {}

  void Look(GroupMemory& memory) override {
    for (size_t r = 0; r < connections_.size(); ++r) {
      if (connections_[r].valid() && IsClosed(connections_[r].get())) {
        memory.Leave(static_cast<int>(r));
      }
    }
  }

 private:
  static bool IsClosed(int socket) {
    pollfd entry{socket, POLLIN, 0};
    return poll(&entry, 1, 0) > 0 && (entry.revents & (POLLHUP | POLLERR | POLLIN)) != 0;
  }

  std::vector<FileHandle> connections_;
};

absl::Status CheckPlace(int rank, int world) {
  if (world < 1 || world > kMaxCommWorld) {
    return InvalidArgument("world ", world, ", allowed: 1 to ", kMaxCommWorld);
  }
  if (rank < 0 || rank >= world) {
    return InvalidArgument("rank ", rank, ", allowed: 0 to ", world - 1);
  }
  return absl::OkStatus();
}

absl::StatusOr<FileHandle> NewMemoryFile(size_t bytes) {
  FileHandle file(memfd_create("kvern-comm", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return ErrnoStatus("memfd_create", errno);
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0) {
    return ErrnoStatus("ftruncate of the memory file", errno);
  }
  // A file that shrinks under a mapping kills whoever touches it.
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return ErrnoStatus("sealing the memory file", errno);
  }
  return file;
}

std::string AbsentRanks(const std::vector<FileHandle>& peers) {
  std::string list;
  for (size_t r = 1; r < peers.size(); ++r) {
    if (!peers[r].valid()) absl::StrAppend(&list, list.empty() ? "" : ", ", r);
  }
  return list;
}

// Takes the connections whose greeting has come into `peers`, and drops those that are no peers.
void Admit(std::vector<FileHandle>& waiting, std::vector<FileHandle>& peers) {
  for (FileHandle& connection : waiting) {
    if (!WaitForEvents(connection.get(), POLLIN, 0)) continue;
    Greeting greeting{};
    FileHandle candidate = std::move(connection);
    if (!ReceivePacket(candidate.get(), &greeting, sizeof(greeting), nullptr)) continue;
    bool fits = greeting.magic == kMagic && greeting.world == peers.size() &&
                greeting.slot_bytes == kCommSlotBytes && greeting.rank >= 1 &&
                greeting.rank < peers.size() && !peers[greeting.rank].valid();
    if (fits) {
      peers[greeting.rank] = std::move(candidate);
    } else {
      Answer refused = Answer::kRefused;
      SendPacket(candidate.get(), &refused, sizeof(refused), -1);
    }
  }
  std::erase_if(waiting, [](const FileHandle& connection) { return !connection.valid(); });
}

// Sleeps until a connection or a greeting has come, at most until `deadline`.
void WaitForSomeone(int listener, const std::vector<FileHandle>& waiting, Time deadline) {
  std::vector<pollfd> entries = {{listener, POLLIN, 0}};
  for (const FileHandle& connection : waiting) entries.push_back({connection.get(), POLLIN, 0});
  Duration left = std::max<Duration>(0, deadline - MonotonicNow());
  int64_t ms = std::min<int64_t>(left / kMillisecond + 1, 60'000);
  poll(entries.data(), entries.size(), static_cast<int>(ms));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ShmHost>> ShmHost::Listen(int world) {
  KVERN_RETURN_IF_ERROR(CheckPlace(0, world));
  std::string random(16, '\0');
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return ErrnoStatus("getrandom", errno);
  }
  std::string name = absl::StrCat("@kvern-", absl::BytesToHexString(random));
  KVERN_ASSIGN_OR_RETURN(AbstractAddress address, ParseAbstractAddress(name));
  KVERN_ASSIGN_OR_RETURN(FileHandle listener, NewSeqPacketSocket());
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address.address), address.size) != 0 ||
      listen(listener.get(), kMaxCommWorld) != 0) {
    return ErrnoStatus(absl::StrCat("listening on ", name), errno);
  }
  return std::unique_ptr<ShmHost>(new ShmHost(name, world, listener.Release()));
}

ShmHost::~ShmHost() { close(socket_); }

absl::StatusOr<std::unique_ptr<Communicator>> ShmHost::Accept(Duration timeout) {
  Time deadline = MonotonicNow() + timeout;
  std::vector<FileHandle> peers(static_cast<size_t>(world_));
  std::vector<FileHandle> waiting;  // connected, have not said who they are
  while (!AbsentRanks(peers).empty()) {
    FileHandle next(accept4(socket_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    // Strangers and a flood of mute connections are closed at once.
    if (next.valid() && PeerIsSameUser(next.get()) && waiting.size() < 2 * kMaxCommWorld) {
      waiting.push_back(std::move(next));
    }
    Admit(waiting, peers);
    std::string absent = AbsentRanks(peers);
    if (!absent.empty() && MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("of ", world_, " ranks, these did not come to ", rendezvous_, " within ",
                       timeout / kMillisecond, " ms: ", absent));
    }
    if (!absent.empty()) WaitForSomeone(socket_, waiting, deadline);
  }
  size_t bytes = GroupMemory::BytesFor(world_);
  KVERN_ASSIGN_OR_RETURN(FileHandle file, NewMemoryFile(bytes));
  KVERN_ASSIGN_OR_RETURN(auto memory, GroupMemory::MapFile(file.get(), world_));
  for (size_t r = 1; r < peers.size(); ++r) {
    Answer welcome = Answer::kWelcome;
    if (!SendPacket(peers[r].get(), &welcome, sizeof(welcome), file.get())) {
      return Unavailable("rank ", r, " of ", world_, " left before the group was complete");
    }
  }
  return std::make_unique<MemoryCommunicator>(std::move(memory), 0,
                                              std::make_unique<ConnectionWatch>(std::move(peers)));
}

namespace {

absl::StatusOr<FileHandle> ConnectUntil(const std::string& rendezvous, Time deadline) {
  KVERN_ASSIGN_OR_RETURN(AbstractAddress address, ParseAbstractAddress(rendezvous));
  while (true) {
    KVERN_ASSIGN_OR_RETURN(FileHandle socket, NewSeqPacketSocket());
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address.address), address.size) == 0) {
      return socket;
    }
    int error = errno;
    bool not_yet = error == ECONNREFUSED || error == EAGAIN || error == EINTR;
    if (!not_yet) return ErrnoStatus(absl::StrCat("connecting to ", rendezvous), error);
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(
          absl::StrCat("rank 0 does not listen on ", rendezvous, ": deadline passed"));
    }
    poll(nullptr, 0, static_cast<int>(kRetryInterval / kMillisecond));
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Communicator>> ConnectShm(const std::string& rendezvous, int rank,
                                                         int world, Duration timeout) {
  KVERN_RETURN_IF_ERROR(CheckPlace(rank, world));
  if (rank == 0) return InvalidArgument("rank 0 listens, it does not connect");
  Time deadline = MonotonicNow() + timeout;
  KVERN_ASSIGN_OR_RETURN(FileHandle socket, ConnectUntil(rendezvous, deadline));
  if (!PeerIsSameUser(socket.get())) {
    return FailedPrecondition(rendezvous, " belongs to another user");
  }
  Greeting greeting{kMagic, static_cast<uint32_t>(rank), static_cast<uint32_t>(world),
                    static_cast<uint32_t>(kCommSlotBytes)};
  if (!SendPacket(socket.get(), &greeting, sizeof(greeting), -1)) {
    return Unavailable("rank 0 left ", rendezvous, " before the group was complete");
  }
  if (!WaitForEvents(socket.get(), POLLIN, deadline - MonotonicNow())) {
    return absl::DeadlineExceededError(absl::StrCat("rank 0 at ", rendezvous,
                                                    " did not answer rank ", rank, " within ",
                                                    timeout / kMillisecond, " ms"));
  }
  Answer answer{};
  FileHandle file;
  if (!ReceivePacket(socket.get(), &answer, sizeof(answer), &file)) {
    return Unavailable("rank 0 left ", rendezvous, " before the group was complete");
  }
  if (answer != Answer::kWelcome || !file.valid()) {
    return InvalidArgument("rank 0 at ", rendezvous, " refuses rank ", rank, " of ", world,
                           ": the rank is taken, or the world or build differs");
  }
  KVERN_ASSIGN_OR_RETURN(auto memory, GroupMemory::MapFile(file.get(), world));
  std::vector<FileHandle> connections(1);
  connections[0] = std::move(socket);
  return std::make_unique<MemoryCommunicator>(
      std::move(memory), rank, std::make_unique<ConnectionWatch>(std::move(connections)));
}

}  // namespace kvern
