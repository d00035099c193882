// Collectives over memory that all ranks of the group see; the one implementation behind local.h
// and shm.h.
#pragma once

#include <memory>

#include "worker/comm/communicator.h"
#include "worker/comm/group_memory.h"

namespace kvern {

// A message travels in chunks of at most one slot, through two slots in turn. A slot is written
// again only when every rank has shown, by a later epoch, that it has read what was there.
class MemoryCommunicator final : public Communicator {
 public:
  // REQUIRES: 0 <= rank < memory->world(). `watch` may be null: peers then only say themselves that
  // they leave.
  MemoryCommunicator(std::shared_ptr<GroupMemory> memory, int rank,
                     std::unique_ptr<PeerWatch> watch);
  ~MemoryCommunicator() override;

  int rank() const override { return rank_; }
  int world() const override { return memory_->world(); }
  absl::Status AllReduceSum(Tensor data) override;
  absl::Status AllGather(const void* in, size_t bytes, void* out) override;
  absl::Status Broadcast(void* data, size_t bytes, int root) override;
  absl::Status Barrier() override;
  absl::Status CheckPeers() override;
  void SetTimeout(Duration timeout) override { timeout_ = timeout; }
  void Abort() override;

 private:
  absl::Status ReduceOneShot(float* data, size_t count);
  absl::Status ReduceBySlices(float* data, size_t count);

  // Chooses the next slot and waits until all ranks are done with its former content.
  absl::Status BeginChunk();
  void EndChunk();
  void Publish() { memory_->Publish(rank_, ++epoch_); }
  absl::Status WaitForAll(uint32_t epoch);
  absl::Status WaitFor(int peer, uint32_t epoch);
  std::byte* Slot(int rank) const { return memory_->Slot(rank, buffer_); }

  std::shared_ptr<GroupMemory> memory_;
  const int rank_;
  std::unique_ptr<PeerWatch> watch_;
  Duration timeout_ = 30 * kSecond;
  Time looked_at_ = 0;   // by CheckPeers, with watch_
  uint32_t epoch_ = 0;   // the same on all ranks between collectives
  uint32_t all_at_ = 0;  // every rank is known to have published this epoch
  uint32_t buffer_ = 0;
  // A rank at this epoch has read all of the slot's former content.
  uint32_t read_by_[2] = {0, 0};
};

}  // namespace kvern
