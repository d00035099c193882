// What a kind of GPU brings: devices, and a communicator between them. The emulated kind is linked;
// others come as plugins, so that no program needs their libraries to start.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cluster/base/status.h"
#include "cluster/base/time.h"
#include "worker/comm/communicator.h"
#include "worker/device/gpu_device.h"

namespace kvern {

class GpuBackend {
 public:
  virtual ~GpuBackend() = default;

  // "emulated", "cuda".
  virtual const char* name() const = 0;

  // GPUs of this machine, at least 1. FailedPrecondition, saying why, when there is no usable one.
  virtual absl::StatusOr<int> CountGpus() const = 0;

  // As CountGpus(); InvalidArgument when this machine has fewer.
  virtual absl::StatusOr<std::unique_ptr<Device>> NewDevice(
      const GpuDeviceConfig& config) const = 0;

  // By which the ranks of one group find each other, once: NCCL's unique id. Rank 0 makes it, and
  // its process must live until they have; it reaches the others as part of Join and GroupStart.
  virtual absl::StatusOr<std::vector<uint8_t>> NewCommId() const = 0;

  // A communicator that adds up device memory by NCCL and carries host memory over `control`, which
  // all ranks must have. Every rank calls it, each with its own device of this backend and all with
  // one `id` of NewCommId; the ranks meet within `timeout`, else DeadlineExceeded names those that
  // did not. With `gathered`, memory of GatheredBytes of `device`, sums are added in rank order
  // whatever their size. `device` outlives the communicator.
  virtual absl::StatusOr<std::unique_ptr<Communicator>> NewCommunicator(
      Device* device, std::unique_ptr<Communicator> control, std::span<const uint8_t> id,
      std::unique_ptr<Buffer> gathered, Duration timeout) const = 0;
  virtual size_t GatheredBytes(int world) const = 0;
};

// GPUs on the CPU: the same source over kernels/simt.
const GpuBackend& EmulatedBackend();

}  // namespace kvern
