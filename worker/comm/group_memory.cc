#include "worker/comm/group_memory.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"

namespace kvern {

struct alignas(64) GroupMemory::RankLine {
  std::atomic<uint32_t> arrived;  // the newest epoch that this rank published
  std::atomic<uint32_t> awaits;   // 1 + the rank that it sleeps for; 0: awake
  std::atomic<uint32_t> bell;     // changes when there is something to look at; the futex
  std::atomic<uint32_t> gone;     // 1: this rank will publish nothing more
};

struct GroupMemory::Header {
  alignas(64) std::atomic<uint32_t> failure;  // CommFailure << 16 | culprit
  std::atomic<uint64_t> silent;               // of kSilent: a bit for each culprit
  RankLine ranks[kMaxCommWorld];
};

namespace {

// About 90 microseconds of `pause` on current x86: longer than a healthy peer is late, shorter than
// two wake-ups by the kernel cost.
constexpr int kSpins = 2000;
constexpr int kSpinsCrowded = 20;

size_t HeaderBytes(size_t header) { return (header + 4095) / 4096 * 4096; }

int UsableCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return 1;
  return std::max(1, CPU_COUNT(&set));
}

inline void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// "rank 1", "ranks 1, 3".
std::string RanksOf(uint64_t bits) {
  std::string text = std::has_single_bit(bits) ? "rank " : "ranks ";
  for (const char* comma = ""; bits != 0; bits &= bits - 1, comma = ", ") {
    absl::StrAppend(&text, comma, std::countr_zero(bits));
  }
  return text;
}

absl::StatusOr<void*> Map(size_t bytes, int flags, int fd) {
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (base == MAP_FAILED) {
    return ResourceExhausted("cannot map ", bytes,
                             " bytes for collectives: ", ErrnoStatus("mmap", errno).message());
  }
  return base;
}

}  // namespace

size_t GroupMemory::BytesFor(int world) {
  return HeaderBytes(sizeof(Header)) + static_cast<size_t>(world) * 2 * kCommSlotBytes;
}

absl::StatusOr<std::shared_ptr<GroupMemory>> GroupMemory::NewPrivate(int world) {
  KVERN_ASSIGN_OR_RETURN(void* base, Map(BytesFor(world), MAP_PRIVATE | MAP_ANONYMOUS, -1));
  return std::shared_ptr<GroupMemory>(new GroupMemory(base, world, FutexScope::kThreads));
}

absl::StatusOr<std::shared_ptr<GroupMemory>> GroupMemory::MapFile(int fd, int world) {
  KVERN_ASSIGN_OR_RETURN(void* base, Map(BytesFor(world), MAP_SHARED, fd));
  return std::shared_ptr<GroupMemory>(new GroupMemory(base, world, FutexScope::kProcesses));
}

// Zero bytes are the initial state of every word, so that no rank has to come first.
GroupMemory::GroupMemory(void* base, int world, FutexScope scope)
    : header_(static_cast<Header*>(base)),
      world_(world),
      scope_(scope),
      spins_(world <= UsableCores() ? kSpins : kSpinsCrowded) {
  KVERN_CHECK(world >= 1 && world <= kMaxCommWorld) << "world " << world;
}

GroupMemory::~GroupMemory() { munmap(header_, BytesFor(world_)); }

std::byte* GroupMemory::Slot(int rank, uint32_t buffer) const {
  size_t index = static_cast<size_t>(rank) * 2 + buffer;
  return reinterpret_cast<std::byte*>(header_) + HeaderBytes(sizeof(Header)) +
         index * kCommSlotBytes;
}

// Publish stores `arrived` and then looks for sleepers; Sleep says that it sleeps and then looks at
// `arrived`. Both are sequentially consistent, so at least one sees the other and no wake is lost.
void GroupMemory::Publish(int rank, uint32_t epoch) {
  header_->ranks[rank].arrived.store(epoch, std::memory_order_seq_cst);
  uint32_t sleeps_for_me = static_cast<uint32_t>(rank) + 1;
  for (int peer = 0; peer < world_; ++peer) {
    RankLine& line = header_->ranks[peer];
    if (line.awaits.load(std::memory_order_seq_cst) != sleeps_for_me) continue;
    line.bell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(line.bell, scope_);
  }
}

bool GroupMemory::HasArrived(int peer, uint32_t epoch) const {
  uint32_t arrived = header_->ranks[peer].arrived.load(std::memory_order_seq_cst);
  return static_cast<int32_t>(arrived - epoch) >= 0;
}

absl::Status GroupMemory::WaitFor(int rank, int peer, uint32_t epoch, Duration timeout,
                                  PeerWatch* watch) {
  for (int spin = 0; spin < spins_; ++spin) {
    if (HasArrived(peer, epoch)) return absl::OkStatus();
    Pause();
  }
  RankLine& line = header_->ranks[rank];
  absl::Status result = Sleep(rank, peer, epoch, timeout, watch);
  line.awaits.store(0, std::memory_order_relaxed);
  return result;
}

absl::Status GroupMemory::Sleep(int rank, int peer, uint32_t epoch, Duration timeout,
                                PeerWatch* watch) {
  RankLine& line = header_->ranks[rank];
  Time deadline = timeout == kTimeMax ? kTimeMax : MonotonicNow() + timeout;
  line.awaits.store(static_cast<uint32_t>(peer) + 1, std::memory_order_seq_cst);
  while (true) {
    uint32_t bell = line.bell.load(std::memory_order_seq_cst);
    if (HasArrived(peer, epoch)) return absl::OkStatus();
    KVERN_RETURN_IF_ERROR(status());
    if (watch != nullptr) watch->Look(*this);
    if (header_->ranks[peer].gone.load(std::memory_order_seq_cst) != 0) {
      // What it published before it went still counts.
      if (HasArrived(peer, epoch)) return absl::OkStatus();
      Fail(CommFailure::kGone, peer);
      return status();
    }
    Duration left = deadline == kTimeMax ? kTimeMax : deadline - MonotonicNow();
    if (left <= 0) {
      FailSilent(epoch);
      return status();
    }
    FutexWait(line.bell, bell, watch != nullptr ? std::min(left, kWatchInterval) : left, scope_);
  }
}

void GroupMemory::Fail(CommFailure kind, int culprit) {
  uint32_t none = 0;
  uint32_t word = static_cast<uint32_t>(kind) << 16 | static_cast<uint32_t>(culprit);
  header_->failure.compare_exchange_strong(none, word, std::memory_order_seq_cst);
  RingAll();
}

// Who has not come is written down first: whoever comes while this group fails was late, too.
void GroupMemory::FailSilent(uint32_t epoch) {
  static_assert(kMaxCommWorld <= 64);
  uint64_t silent = 0;
  for (int peer = 0; peer < world_; ++peer) {
    if (!HasArrived(peer, epoch)) silent |= uint64_t{1} << peer;
  }
  if (silent == 0) return;  // the last one came at the very end; the next look sees it
  uint64_t none = 0;
  header_->silent.compare_exchange_strong(none, silent, std::memory_order_seq_cst);
  Fail(CommFailure::kSilent, std::countr_zero(silent));
}

void GroupMemory::Leave(int rank) {
  if (header_->ranks[rank].gone.exchange(1, std::memory_order_seq_cst) == 0) RingAll();
}

absl::Status GroupMemory::CheckPeers(int rank) {
  for (int peer = 0; peer < world_; ++peer) {
    bool gone = header_->ranks[peer].gone.load(std::memory_order_seq_cst) != 0;
    if (gone && peer != rank) Fail(CommFailure::kGone, peer);
  }
  return status();
}

void GroupMemory::RingAll() {
  for (int peer = 0; peer < world_; ++peer) {
    header_->ranks[peer].bell.fetch_add(1, std::memory_order_seq_cst);
    FutexWakeAll(header_->ranks[peer].bell, scope_);
  }
}

absl::Status GroupMemory::status() const {
  uint32_t word = header_->failure.load(std::memory_order_seq_cst);
  uint32_t culprit = word & 0xffff;
  switch (static_cast<CommFailure>(word >> 16)) {
    case CommFailure::kNone:
      return absl::OkStatus();
    case CommFailure::kAborted:
      return Unavailable("collectives aborted by rank ", culprit, " of ", world_);
    case CommFailure::kGone:
      return Unavailable("rank ", culprit, " of ", world_, " is gone");
    case CommFailure::kSilent:
      return Unavailable(RanksOf(header_->silent.load(std::memory_order_seq_cst)), " of ", world_,
                         " did not reach the collective before its deadline");
  }
  return Unavailable("the group's shared memory holds the unknown failure ", word);
}

}  // namespace kvern
