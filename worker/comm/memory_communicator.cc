#include "worker/comm/memory_communicator.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "cluster/base/check.h"
#include "cluster/base/clock.h"

namespace kvern {
namespace {

// From this size on, and with more than two ranks, each rank adds only its slice of a chunk: it
// then reads world * n / world instead of world * n bytes, for the price of a second epoch.
constexpr size_t kSliceBytes = 64 << 10;
constexpr size_t kSlotFloats = kCommSlotBytes / sizeof(float);
constexpr size_t kLanes = 16;  // Fixed inner loops become vector code at -O2.

const float* AsFloats(const std::byte* bytes) { return reinterpret_cast<const float*>(bytes); }

// out[i] = ((parts[0][i] + parts[1][i]) + parts[2][i]) + ... `out` may be one of the parts.
void SumInRankOrder(const float* const* parts, int world, size_t count, float* out) {
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    float sum[kLanes];
    for (size_t k = 0; k < kLanes; ++k) sum[k] = parts[0][i + k];
    for (int r = 1; r < world; ++r) {
      const float* part = parts[r] + i;
      for (size_t k = 0; k < kLanes; ++k) sum[k] += part[k];
    }
    for (size_t k = 0; k < kLanes; ++k) out[i + k] = sum[k];
  }
  for (; i < count; ++i) {
    float sum = parts[0][i];
    for (int r = 1; r < world; ++r) sum += parts[r][i];
    out[i] = sum;
  }
}

}  // namespace

MemoryCommunicator::MemoryCommunicator(std::shared_ptr<GroupMemory> memory, int rank,
                                       std::unique_ptr<PeerWatch> watch)
    : memory_(std::move(memory)), rank_(rank), watch_(std::move(watch)) {}

MemoryCommunicator::~MemoryCommunicator() { memory_->Leave(rank_); }

void MemoryCommunicator::Abort() { memory_->Fail(CommFailure::kAborted, rank_); }

absl::Status MemoryCommunicator::CheckPeers() {
  if (watch_ != nullptr && MonotonicNow() - looked_at_ >= kWatchInterval) {
    watch_->Look(*memory_);
    looked_at_ = MonotonicNow();
  }
  return memory_->CheckPeers(rank_);
}

absl::Status MemoryCommunicator::WaitFor(int peer, uint32_t epoch) {
  if (peer == rank_) return absl::OkStatus();
  return memory_->WaitFor(rank_, peer, epoch, timeout_, watch_.get());
}

absl::Status MemoryCommunicator::WaitForAll(uint32_t epoch) {
  if (static_cast<int32_t>(all_at_ - epoch) >= 0) return absl::OkStatus();
  for (int peer = 0; peer < world(); ++peer) KVERN_RETURN_IF_ERROR(WaitFor(peer, epoch));
  all_at_ = epoch;
  return absl::OkStatus();
}

absl::Status MemoryCommunicator::BeginChunk() {
  // A peer's failure shows here even when everyone it waits for has arrived.
  KVERN_RETURN_IF_ERROR(memory_->status());
  buffer_ ^= 1;
  return WaitForAll(read_by_[buffer_]);
}

void MemoryCommunicator::EndChunk() { read_by_[buffer_] = epoch_ + 1; }

absl::Status MemoryCommunicator::Barrier() {
  KVERN_RETURN_IF_ERROR(memory_->status());
  Publish();
  return WaitForAll(epoch_);
}

absl::Status MemoryCommunicator::AllReduceSum(Tensor data) {
  KVERN_CHECK(data.dtype == DType::kF32 && (data.stride == data.cols || data.rows <= 1));
  if (world() == 1) return memory_->status();
  size_t count = static_cast<size_t>(data.rows * data.cols);
  bool slices = world() > 2 && count * sizeof(float) >= kSliceBytes;
  for (size_t done = 0; done < count;) {
    size_t chunk = std::min(count - done, kSlotFloats);
    float* part = data.f32() + done;
    KVERN_RETURN_IF_ERROR(slices ? ReduceBySlices(part, chunk) : ReduceOneShot(part, chunk));
    done += chunk;
  }
  return memory_->status();
}

// Everyone adds everything.
absl::Status MemoryCommunicator::ReduceOneShot(float* data, size_t count) {
  KVERN_RETURN_IF_ERROR(BeginChunk());
  std::memcpy(Slot(rank_), data, count * sizeof(float));
  Publish();
  KVERN_RETURN_IF_ERROR(WaitForAll(epoch_));
  const float* parts[kMaxCommWorld];
  for (int r = 0; r < world(); ++r) parts[r] = AsFloats(Slot(r));
  SumInRankOrder(parts, world(), count, data);
  EndChunk();
  return absl::OkStatus();
}

// Rank r adds slice r, leaves the sum in its own slot (no one else reads that slice there before),
// and all collect the slices.
absl::Status MemoryCommunicator::ReduceBySlices(float* data, size_t count) {
  KVERN_RETURN_IF_ERROR(BeginChunk());
  std::memcpy(Slot(rank_), data, count * sizeof(float));
  Publish();
  KVERN_RETURN_IF_ERROR(WaitForAll(epoch_));
  size_t ranks = static_cast<size_t>(world());
  size_t slice = (count + ranks - 1) / ranks;
  auto begin = [&](int r) { return std::min(count, static_cast<size_t>(r) * slice); };
  const float* parts[kMaxCommWorld];
  for (int r = 0; r < world(); ++r) parts[r] = AsFloats(Slot(r)) + begin(rank_);
  SumInRankOrder(parts, world(), begin(rank_ + 1) - begin(rank_),
                 reinterpret_cast<float*>(Slot(rank_)) + begin(rank_));
  Publish();
  KVERN_RETURN_IF_ERROR(WaitForAll(epoch_));
  for (int r = 0; r < world(); ++r) {
    size_t from = begin(r);
    std::memcpy(data + from, AsFloats(Slot(r)) + from, (begin(r + 1) - from) * sizeof(float));
  }
  EndChunk();
  return absl::OkStatus();
}

absl::Status MemoryCommunicator::AllGather(const void* in, size_t bytes, void* out) {
  auto* target = static_cast<std::byte*>(out);
  auto* source = static_cast<const std::byte*>(in);
  if (world() == 1) {
    if (bytes > 0) std::memmove(target, source, bytes);
    return memory_->status();
  }
  for (size_t done = 0; done < bytes;) {
    size_t chunk = std::min(bytes - done, kCommSlotBytes);
    KVERN_RETURN_IF_ERROR(BeginChunk());
    std::memcpy(Slot(rank_), source + done, chunk);
    Publish();
    KVERN_RETURN_IF_ERROR(WaitForAll(epoch_));
    for (int r = 0; r < world(); ++r) {
      std::memcpy(target + static_cast<size_t>(r) * bytes + done, Slot(r), chunk);
    }
    EndChunk();
    done += chunk;
  }
  return memory_->status();
}

// The root does not wait for the others: they only have to be done with its slot before last.
absl::Status MemoryCommunicator::Broadcast(void* data, size_t bytes, int root) {
  KVERN_CHECK(root >= 0 && root < world()) << "root " << root;
  if (world() == 1) return memory_->status();
  auto* target = static_cast<std::byte*>(data);
  for (size_t done = 0; done < bytes;) {
    size_t chunk = std::min(bytes - done, kCommSlotBytes);
    KVERN_RETURN_IF_ERROR(BeginChunk());
    if (rank_ == root) std::memcpy(Slot(root), target + done, chunk);
    Publish();
    KVERN_RETURN_IF_ERROR(WaitFor(root, epoch_));
    if (rank_ != root) std::memcpy(target + done, Slot(root), chunk);
    EndChunk();
    done += chunk;
  }
  return memory_->status();
}

}  // namespace kvern
