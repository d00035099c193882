// Ranks that are processes of one host. Rank 0 makes a nameless memory file and listens on an
// abstract unix socket; the others connect, prove that they run as the same user, and receive the
// file. Nothing has a name on disk, so nothing is left behind when processes are killed.
#pragma once

#include <memory>
#include <string>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "worker/comm/communicator.h"

namespace kvern {

// Rank 0's side of the meeting.
class ShmHost {
 public:
  // Listens under a fresh name. 1 <= world <= 64, else InvalidArgument.
  static absl::StatusOr<std::unique_ptr<ShmHost>> Listen(int world);
  ~ShmHost();

  // "@kvern-" and 32 hexadecimal digits: what the other ranks must be told.
  const std::string& rendezvous() const { return rendezvous_; }

  // Waits for ranks 1 .. world-1 and returns rank 0's communicator; call once. Peers of another
  // user, with another world or with a rank that is taken are turned away. DeadlineExceeded names
  // the ranks that are absent after `timeout`.
  absl::StatusOr<std::unique_ptr<Communicator>> Accept(Duration timeout);

 private:
  ShmHost(std::string rendezvous, int world, int socket)
      : rendezvous_(std::move(rendezvous)), world_(world), socket_(socket) {}

  std::string rendezvous_;
  int world_;
  int socket_;
};

// The side of ranks 1 .. world-1. Waits until rank 0 has all ranks. DeadlineExceeded when rank 0 is
// not there in time, Unavailable when it gives up, InvalidArgument when it refuses this rank.
absl::StatusOr<std::unique_ptr<Communicator>> ConnectShm(const std::string& rendezvous, int rank,
                                                         int world, Duration timeout);

}  // namespace kvern
