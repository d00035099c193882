// Sums over the GPUs of a group, by NCCL; host memory goes over another communicator.
#pragma once

#include <nccl.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cluster/base/time.h"
#include "worker/comm/communicator.h"
#include "worker/device/cuda/cuda_context.h"
#include "worker/device/device.h"

namespace kvern::inline KVERN_GPU_BUILD {

// A sum is enqueued on the device's compute stream and may be recorded into a graph; whether it
// came about shows when the device is waited for: while that lasts, this communicator looks for
// NCCL's own errors, for Abort, for the timeout, since NCCL itself waits for ever, and at
// `control`, which notices a peer that failed or died without NCCL's knowledge. Plans and
// candidates are host memory and small: they take the short way over `control`.
class NcclCommunicator final : public Communicator {
 public:
  // See GpuBackend::NewCommId and NewCommunicator.
  static absl::StatusOr<std::vector<uint8_t>> NewId();
  static absl::StatusOr<std::unique_ptr<Communicator>> Meet(CudaContext& context,
                                                            std::unique_ptr<Communicator> control,
                                                            std::span<const uint8_t> id,
                                                            std::unique_ptr<Buffer> gathered,
                                                            Duration timeout);
  static size_t GatheredBytes(int world);
  ~NcclCommunicator() override;

  int rank() const override { return control_->rank(); }
  int world() const override { return control_->world(); }
  // data: device memory.
  absl::Status AllReduceSum(Tensor data) override;
  absl::Status AllGather(const void* in, size_t bytes, void* out) override {
    return control_->AllGather(in, bytes, out);
  }
  absl::Status Broadcast(void* data, size_t bytes, int root) override {
    return control_->Broadcast(data, bytes, root);
  }
  absl::Status Barrier() override { return control_->Barrier(); }
  absl::Status CheckPeers() override { return control_->CheckPeers(); }
  void SetTimeout(Duration timeout) override;
  void Abort() override;

 private:
  NcclCommunicator(CudaContext& context, std::unique_ptr<Communicator> control,
                   std::unique_ptr<Buffer> gathered)
      : context_(context), control_(std::move(control)), gathered_(std::move(gathered)) {}

  // Connects all ranks, or says which did not and why.
  absl::Status MeetPeers(std::span<const uint8_t> id, Duration timeout);
  absl::Status Connect(std::span<const uint8_t> id, Duration timeout);
  // Waits until NCCL is done with what it does in the background.
  absl::Status Settle(Duration timeout, const char* what);
  // What a collective that answered `result` came to: as a rule NCCL enqueues it in the background.
  absl::Status Called(ncclResult_t result, const char* what);
  absl::Status CallStatus(ncclResult_t result, const char* what);
  absl::Status Look(Duration waited);
  absl::Status SumInOrder(float* data, size_t count);

  CudaContext& context_;
  std::unique_ptr<Communicator> control_;
  ncclComm_t comm_ = nullptr;
  absl::Status met_;                        // whether all ranks are connected
  const std::unique_ptr<Buffer> gathered_;  // for ordered sums, else null: one piece of each rank
  std::atomic<Duration> timeout_{30 * kSecond};
  std::atomic<bool> aborted_{false};
};

}  // namespace kvern::inline KVERN_GPU_BUILD
