// Collectives between the ranks of one group.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "worker/device/tensor.h"

namespace kvern {

// Every rank calls the same collectives in the same order, each from its one thread. Sums are added
// in rank order, so all ranks hold the same bits and the result depends on nothing but the inputs;
// between GPUs only if that was asked for (nccl/gpu_backend.h).
// Any error is final for the group: Unavailable when a peer is gone, aborted or silent past the
// deadline, and every later call fails the same way. Abort may be called from any thread.
class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int world() const = 0;

  // data[i] = sum over ranks ascending of their data[i]. data: contiguous float32 rows [rows,
  // cols] in the device's memory, in order with its operations. The others carry host memory.
  virtual absl::Status AllReduceSum(Tensor data) = 0;

  // out[r * bytes .. ] = the `bytes` bytes of rank r, on every rank.
  virtual absl::Status AllGather(const void* in, size_t bytes, void* out) = 0;

  // `bytes` bytes of rank `root` reach all ranks' `data`.
  virtual absl::Status Broadcast(void* data, size_t bytes, int root) = 0;

  virtual absl::Status Barrier() = 0;

  // OK, or why the group has failed: aborted, or a peer is gone. Never waits. For the rank's thread
  // while it waits for something that needs its peers but is no collective of this communicator.
  virtual absl::Status CheckPeers() = 0;

  // How long a collective may wait for its peers; initially 30 s. kTimeMax: without end.
  virtual void SetTimeout(Duration timeout) = 0;

  // Makes every waiting and later call on all ranks of this process fail.
  virtual void Abort() = 0;
};

}  // namespace kvern
