#include "kernels/simt/runtime/nccl_group.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace kvern::simt {
namespace {

constexpr size_t kSlotBytes = 256 << 10;
// How often a waiting rank looks whether its peers' processes live.
constexpr long kLookNanoseconds = 20'000'000;
constexpr int kSpins = 200;

// What a unique id holds: where the memory is. Opening another process's file takes the rights
// over that process, so other users are kept out.
struct IdContent {
  uint64_t magic;
  uint64_t secret;
  int32_t process;
  int32_t file;
};
constexpr uint64_t kIdMagic = 0x6b7665726e6e6363;  // "kvernncc"
static_assert(sizeof(IdContent) <= NCCL_UNIQUE_ID_BYTES);

size_t SizeOf(uint32_t type) { return type == ncclFloat32 ? sizeof(float) : 1; }

const char* NameOf(uint32_t op) {
  return op == NcclCall::kAllReduce   ? "AllReduce"
         : op == NcclCall::kAllGather ? "AllGather"
         : op == NcclCall::kBroadcast ? "Broadcast"
                                      : "nothing";
}

std::string TextOf(const NcclCall& call) {
  std::string text = std::string(NameOf(call.op)) + " of " + std::to_string(call.count) +
                     (call.type == ncclFloat32 ? " float32" : " bytes");
  if (call.op == NcclCall::kBroadcast) text += " from rank " + std::to_string(call.root);
  if (call.piece > 0) text += ", piece " + std::to_string(call.piece);
  return text;
}

void FutexWait(std::atomic<uint32_t>& word, uint32_t seen) {
  const timespec timeout = {0, kLookNanoseconds};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, seen, &timeout, nullptr, 0);
}

}  // namespace

// Written by its rank alone.
struct alignas(64) NcclGroup::Line {
  std::atomic<uint32_t> taken;     // by compare-and-swap: one rank wins a place
  std::atomic<uint32_t> posted;    // epoch: call and slot are written
  std::atomic<uint32_t> finished;  // epoch: has read what the others posted
  int32_t process;
  int32_t device;
  int32_t ranks;
  NcclCall call;
};

struct NcclGroup::Shared {
  uint64_t secret;
  alignas(64) std::atomic<uint32_t> bell;  // counts changes of any line
  Line lines[kMaxNcclRanks];
};

namespace {
// The slots follow the header.
constexpr size_t kHeaderBytes = 16 << 10;
constexpr size_t kFileBytes = kHeaderBytes + kMaxNcclRanks * kSlotBytes;
}  // namespace

NcclGroup::~NcclGroup() {
  for (const int file : pid_files_) {
    if (file >= 0) close(file);
  }
  munmap(shared_, kFileBytes);
}

char* NcclGroup::Slot(int rank) const {
  return reinterpret_cast<char*>(shared_) + kHeaderBytes + static_cast<size_t>(rank) * kSlotBytes;
}

bool NcclGroup::MakeId(ncclUniqueId& id) {
  static_assert(sizeof(Shared) <= kHeaderBytes);
  IdContent content = {kIdMagic, 0, getpid(), -1};
  if (getrandom(&content.secret, sizeof(content.secret), 0) != sizeof(content.secret)) return false;
  // The file stays open: ranks that come later find it through this process.
  content.file = memfd_create("kvern-emulated-nccl", MFD_CLOEXEC);
  if (content.file < 0) return false;
  if (ftruncate(content.file, kFileBytes) != 0 ||
      pwrite(content.file, &content.secret, sizeof(content.secret), 0) !=
          static_cast<ssize_t>(sizeof(content.secret))) {
    close(content.file);
    return false;
  }
  std::memset(&id, 0, sizeof(id));
  std::memcpy(id.internal, &content, sizeof(content));
  return true;
}

NcclGroup* NcclGroup::Map(const ncclUniqueId& id, int ranks, int rank, NcclFailure& failure) {
  IdContent content;
  std::memcpy(&content, id.internal, sizeof(content));
  if (content.magic != kIdMagic) {
    failure = {ncclInvalidArgument, "the unique id is not one of ncclGetUniqueId"};
    return nullptr;
  }
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/fd/%d", content.process, content.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) {
    failure = {ncclRemoteError, "the process that made the unique id is gone"};
    return nullptr;
  }
  void* memory = mmap(nullptr, kFileBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) {
    failure = {ncclSystemError, "mapping the shared memory of the ranks failed"};
    return nullptr;
  }
  std::unique_ptr<NcclGroup> group(new NcclGroup(static_cast<Shared*>(memory), ranks, rank));
  if (group->shared_->secret != content.secret) {
    failure = {ncclRemoteError, "the process that made the unique id is gone"};
    return nullptr;
  }
  return group.release();
}

bool NcclGroup::TakePlace(int device, NcclFailure& failure) {
  Line& line = shared_->lines[rank_];
  uint32_t free = 0;
  if (!line.taken.compare_exchange_strong(free, 1)) {
    failure = {ncclInvalidUsage, "rank " + std::to_string(rank_) + " is taken already"};
    return false;
  }
  line.process = getpid();
  line.device = device;
  line.ranks = ranks_;
  line.posted.store(1, std::memory_order_release);
  epoch_ = 1;
  Ring();
  return true;
}

std::unique_ptr<NcclGroup> NcclGroup::Join(const ncclUniqueId& id, int ranks, int rank, int device,
                                           const std::atomic<bool>& aborted, NcclFailure& failure) {
  std::unique_ptr<NcclGroup> group(Map(id, ranks, rank, failure));
  if (group == nullptr || !group->TakePlace(device, failure)) return nullptr;
  if (!group->AwaitAll(group->epoch_, false, aborted, failure)) return nullptr;
  if (!group->DevicesDiffer(failure)) return nullptr;
  group->WatchPeers();
  group->shared_->lines[rank].finished.store(group->epoch_, std::memory_order_release);
  group->Ring();
  if (!group->AwaitAll(group->epoch_, true, aborted, failure)) return nullptr;
  return group;
}

bool NcclGroup::DevicesDiffer(NcclFailure& failure) const {
  for (int peer = 0; peer < ranks_; ++peer) {
    const Line& other = shared_->lines[peer];
    if (other.ranks != ranks_) {
      failure = {ncclInvalidUsage, "rank " + std::to_string(peer) + " is of " +
                                       std::to_string(other.ranks) + " ranks, rank " +
                                       std::to_string(rank_) + " of " + std::to_string(ranks_)};
      return false;
    }
    // Every rank looks at every pair, so that all of them fail.
    for (int before = 0; before < peer; ++before) {
      if (shared_->lines[before].device != other.device) continue;
      failure = {ncclInvalidUsage, "Duplicate GPU detected : rank " + std::to_string(before) +
                                       " and rank " + std::to_string(peer) +
                                       " both on CUDA device " + std::to_string(other.device)};
      return false;
    }
  }
  return true;
}

void NcclGroup::WatchPeers() {
  pid_files_.assign(static_cast<size_t>(ranks_), -1);
  for (int peer = 0; peer < ranks_; ++peer) {
    const int32_t process = shared_->lines[peer].process;
    if (process == getpid()) continue;
    pid_files_[static_cast<size_t>(peer)] = static_cast<int>(syscall(SYS_pidfd_open, process, 0));
  }
}

int NcclGroup::DeadPeer() const {
  for (size_t peer = 0; peer < pid_files_.size(); ++peer) {
    pollfd entry = {pid_files_[peer], POLLIN, 0};
    if (entry.fd >= 0 && poll(&entry, 1, 0) > 0) return static_cast<int>(peer);
  }
  return -1;
}

void NcclGroup::Ring() {
  shared_->bell.fetch_add(1);
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&shared_->bell), FUTEX_WAKE, INT32_MAX, nullptr,
          nullptr, 0);
}

// Waits until every rank has posted, or finished, `epoch`.
bool NcclGroup::AwaitAll(uint32_t epoch, bool finished, const std::atomic<bool>& aborted,
                         NcclFailure& failure) {
  const auto all_there = [&] {
    for (int peer = 0; peer < ranks_; ++peer) {
      const Line& line = shared_->lines[peer];
      const auto& word = finished ? line.finished : line.posted;
      if (static_cast<int32_t>(word.load(std::memory_order_acquire) - epoch) < 0) return false;
    }
    return true;
  };
  for (int spin = 0; spin < kSpins; ++spin) {
    if (all_there()) return true;
  }
  while (true) {
    const uint32_t seen = shared_->bell.load();
    if (all_there()) return true;
    if (aborted.load()) return false;
    const int dead = DeadPeer();
    if (dead >= 0 && !all_there()) {
      failure = {ncclRemoteError, "rank " + std::to_string(dead) + " is gone"};
      return false;
    }
    FutexWait(shared_->bell, seen);
  }
}

bool NcclGroup::SameCalls(const NcclCall& call, NcclFailure& failure) const {
  for (int peer = 0; peer < ranks_; ++peer) {
    const NcclCall& other = shared_->lines[peer].call;
    if (other == call) continue;
    failure = {ncclInvalidUsage, "mismatched collectives: rank " + std::to_string(rank_) +
                                     " calls " + TextOf(call) + ", rank " + std::to_string(peer) +
                                     " calls " + TextOf(other)};
    // A real device would hang or mix up its data; whoever debugs this wants to read it at once.
    std::fprintf(stderr, "emulated NCCL: %s\n", failure.text.c_str());
    return false;
  }
  return true;
}

bool NcclGroup::Run(NcclCall call, const void* send, void* receive,
                    const std::atomic<bool>& aborted, NcclFailure& failure) {
  const size_t bytes = call.count * SizeOf(call.type);
  const bool sends = call.op != NcclCall::kBroadcast || call.root == rank_;
  Line& line = shared_->lines[rank_];
  size_t done = 0;
  do {
    const size_t chunk = std::min(bytes - done, kSlotBytes);
    if (sends) std::memcpy(Slot(rank_), static_cast<const char*>(send) + done, chunk);
    line.call = call;
    line.posted.store(++epoch_, std::memory_order_release);
    Ring();
    if (!AwaitAll(epoch_, false, aborted, failure)) return false;
    if (!SameCalls(call, failure)) return false;
    Take(call, done, chunk, receive);
    line.finished.store(epoch_, std::memory_order_release);
    Ring();
    if (!AwaitAll(epoch_, true, aborted, failure)) return false;
    done += chunk;
    ++call.piece;
  } while (done < bytes);
  return true;
}

void NcclGroup::Take(const NcclCall& call, size_t done, size_t chunk, void* receive) const {
  auto* out = static_cast<char*>(receive);
  switch (call.op) {
    case NcclCall::kAllReduce:
      Sum(call, done, chunk, reinterpret_cast<float*>(out + done));
      break;
    case NcclCall::kAllGather:
      for (int peer = 0; peer < ranks_; ++peer) {
        const size_t begin = static_cast<size_t>(peer) * call.count * SizeOf(call.type) + done;
        std::memcpy(out + begin, Slot(peer), chunk);
      }
      break;
    case NcclCall::kBroadcast:
      if (rank_ != call.root || out != nullptr) std::memcpy(out + done, Slot(call.root), chunk);
      break;
  }
}

// All ranks add in one order, but which depends on how much there is to add, as it does between
// the algorithms (tree, ring) and channels of the real library.
void NcclGroup::Sum(const NcclCall& call, size_t done, size_t chunk, float* out) const {
  constexpr size_t kTreeElements = 1024;
  const size_t count = chunk / sizeof(float);
  const size_t run = std::max<size_t>(1, call.count / static_cast<size_t>(ranks_));
  for (size_t i = 0; i < count; ++i) {
    const size_t index = done / sizeof(float) + i;
    const int first = call.count <= kTreeElements
                          ? static_cast<int>(call.count % static_cast<size_t>(ranks_))
                          : static_cast<int>(index / run % static_cast<size_t>(ranks_));
    float sum = 0;
    for (int r = 0; r < ranks_; ++r) {
      float value = 0;
      const int from = (first + r) % ranks_;
      std::memcpy(&value, Slot(from) + i * sizeof(float), sizeof(value));
      sum = r == 0 ? value : sum + value;
    }
    out[i] = sum;
  }
}

}  // namespace kvern::simt
