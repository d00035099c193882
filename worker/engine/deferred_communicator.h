// A communicator that is known before its group exists: a rank allocates everything first, joins,
// and only then meets its peers.
#pragma once

#include <memory>
#include <utility>

#include "cluster/base/check.h"
#include "worker/comm/communicator.h"

namespace kvern {

// Set once, by the rank's thread, before any collective; then it is that communicator.
class DeferredCommunicator : public Communicator {
 public:
  DeferredCommunicator(int rank, int world) : rank_(rank), world_(world) {}

  void Set(std::unique_ptr<Communicator> comm) {
    KVERN_CHECK(comm->rank() == rank_ && comm->world() == world_ && comm_ == nullptr);
    comm_ = std::move(comm);
  }

  // The rank takes part in nothing any more.
  void Leave() { comm_.reset(); }

  int rank() const override { return rank_; }
  int world() const override { return world_; }
  absl::Status AllReduceSum(Tensor data) override { return get().AllReduceSum(data); }
  absl::Status AllGather(const void* in, size_t bytes, void* out) override {
    return get().AllGather(in, bytes, out);
  }
  absl::Status Broadcast(void* data, size_t bytes, int root) override {
    return get().Broadcast(data, bytes, root);
  }
  absl::Status Barrier() override { return get().Barrier(); }
  absl::Status CheckPeers() override { return get().CheckPeers(); }
  void SetTimeout(Duration timeout) override { get().SetTimeout(timeout); }
  void Abort() override { get().Abort(); }

 private:
  Communicator& get() {
    KVERN_CHECK(comm_ != nullptr) << "a collective before the group has met";
    return *comm_;
  }

  int rank_;
  int world_;
  std::unique_ptr<Communicator> comm_;
};

}  // namespace kvern
