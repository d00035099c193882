// The CPU as a device: the host's memory, Highway kernels, a pool of threads.
#pragma once

#include <memory>
#include <string>

#include "worker/device/device.h"

namespace kvern {

struct CpuDeviceConfig {
  int threads = 1;           // >= 1; the calling thread is one of them
  std::string isa = "auto";  // "auto" (the best this CPU has), "plain", "avx2", "avx512"
};

// InvalidArgument names the field: an unknown isa, one this CPU lacks, threads out of [1, 1024].
// ResourceExhausted when the system does not give as many threads.
absl::StatusOr<std::unique_ptr<Device>> NewCpuDevice(const CpuDeviceConfig& config);

}  // namespace kvern
