// The memory that the ranks of a group share, and how they signal through it. Threads of one
// process and processes of one host use the same layout and code.
//
// Every rank owns one line of words and two data slots. A rank publishes an epoch after it wrote
// its slot; the others wait for that epoch before they read it. Nothing is ever locked, so a rank
// that is killed at any instruction leaves the memory in a state that the others can judge.
//
// Invariants: only rank r writes arrived, awaits and the slots of r. `failure` is set once.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "worker/comm/futex.h"

namespace kvern {

inline constexpr int kMaxCommWorld = 64;
// A chunk of a collective. Two per rank stay in a core's second-level cache (2 MiB) beside the
// chunk that is reduced.
inline constexpr size_t kCommSlotBytes = 256 << 10;

enum class CommFailure : uint32_t { kNone = 0, kAborted = 1, kGone = 2, kSilent = 3 };

class GroupMemory;

// How often a waiting rank asks its PeerWatch.
inline constexpr Duration kWatchInterval = 100 * kMillisecond;

// How a rank notices that a peer died without saying so. Asked by the waiting rank now and then.
class PeerWatch {
 public:
  virtual ~PeerWatch() = default;
  // Calls Leave() in the name of every peer that is certainly dead.
  virtual void Look(GroupMemory& memory) = 0;
};

class GroupMemory {
 public:
  // Bytes that a group of `world` ranks needs.
  static size_t BytesFor(int world);

  // In this process only, for threads. ResourceExhausted when memory is short.
  static absl::StatusOr<std::shared_ptr<GroupMemory>> NewPrivate(int world);
  // Over a file of BytesFor(world) zero bytes that no one can shrink. Does not keep `fd`.
  static absl::StatusOr<std::shared_ptr<GroupMemory>> MapFile(int fd, int world);

  ~GroupMemory();
  GroupMemory(const GroupMemory&) = delete;
  GroupMemory& operator=(const GroupMemory&) = delete;

  int world() const { return world_; }

  // Slot `buffer` (0 or 1) of `rank`, kCommSlotBytes long.
  std::byte* Slot(int rank, uint32_t buffer) const;

  // Says that `rank` is at `epoch` and wakes who sleeps for it. Epochs wrap around.
  void Publish(int rank, uint32_t epoch);

  // Waits until `peer` has published `epoch` or a later one, at most `timeout` (kTimeMax: without
  // end). Unavailable, and the group has failed, when it cannot be. `watch` may be null.
  absl::Status WaitFor(int rank, int peer, uint32_t epoch, Duration timeout, PeerWatch* watch);

  // Any thread. The first failure stays; every waiting rank wakes and fails.
  void Fail(CommFailure kind, int culprit);
  // `rank` takes part no more: whoever waits for more from it fails. May be said twice.
  void Leave(int rank);

  // Fails if a rank but `rank` takes part no more; then as status().
  absl::Status CheckPeers(int rank);

  // OK, or why the group failed.
  absl::Status status() const;

 private:
  struct RankLine;
  struct Header;

  GroupMemory(void* base, int world, FutexScope scope);
  bool HasArrived(int peer, uint32_t epoch) const;
  // Fails with all ranks that have not published `epoch`; not when there are none.
  void FailSilent(uint32_t epoch);
  void RingAll();
  absl::Status Sleep(int rank, int peer, uint32_t epoch, Duration timeout, PeerWatch* watch);

  Header* header_;
  int world_;
  FutexScope scope_;
  int spins_;
};

}  // namespace kvern
