// The memory that the ranks of one emulated communicator share, whether they are threads or
// processes, and the collectives over it.
//
// A rank posts a call and its data, waits until all have, reads theirs, says so, and waits until
// all have said so. Nothing is locked: a rank may be killed at any instruction.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvern::simt {

inline constexpr int kMaxNcclRanks = 64;

// One collective as a rank sees it; ranks must agree in all of it.
struct NcclCall {
  enum Op : uint32_t { kAllReduce = 1, kAllGather = 2, kBroadcast = 3 };
  uint32_t op = 0;
  uint32_t type = 0;
  uint64_t count = 0;
  int32_t root = 0;
  uint32_t piece = 0;  // of a call that is larger than a slot
  bool operator==(const NcclCall&) const = default;
};

// What went wrong, and with which code.
struct NcclFailure {
  ncclResult_t code = ncclSuccess;
  std::string text;
};

class NcclGroup {
 public:
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  // A new group's name; the memory lives at least as long as the calling process.
  static bool MakeId(ncclUniqueId& id);

  // Takes the place of `rank` and waits until all `ranks` have theirs, or `aborted`. Null with the
  // reason in `failure`.
  static std::unique_ptr<NcclGroup> Join(const ncclUniqueId& id, int ranks, int rank, int device,
                                         const std::atomic<bool>& aborted, NcclFailure& failure);

  // Runs a collective: send and receive as NCCL has them, bytes counted. False: `failure` says why;
  // an abort leaves it empty.
  bool Run(NcclCall call, const void* send, void* receive, const std::atomic<bool>& aborted,
           NcclFailure& failure);

  // Wakes those who wait, so that they look at `aborted`.
  void Ring();

 private:
  struct Line;
  struct Shared;

  NcclGroup(Shared* shared, int ranks, int rank) : shared_(shared), ranks_(ranks), rank_(rank) {}
  static NcclGroup* Map(const ncclUniqueId& id, int ranks, int rank, NcclFailure& failure);
  bool TakePlace(int device, NcclFailure& failure);
  bool AwaitAll(uint32_t epoch, bool finished, const std::atomic<bool>& aborted,
                NcclFailure& failure);
  bool DevicesDiffer(NcclFailure& failure) const;
  bool SameCalls(const NcclCall& call, NcclFailure& failure) const;
  int DeadPeer() const;
  void WatchPeers();
  void Take(const NcclCall& call, size_t done, size_t chunk, void* receive) const;
  void Sum(const NcclCall& call, size_t done, size_t chunk, float* out) const;
  char* Slot(int rank) const;

  Shared* const shared_;
  const int ranks_;
  const int rank_;
  uint32_t epoch_ = 0;
  std::vector<int> pid_files_;  // of ranks in other processes; -1 elsewhere
};

}  // namespace kvern::simt
