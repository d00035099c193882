// A GPU as a device, said without any CUDA header: real (a plugin, loaded on demand) or emulated.
#pragma once

#include <memory>

#include "worker/device/device.h"

namespace kvern {

struct GpuDeviceConfig {
  int index = 0;         // of the machine's GPUs
  int host_threads = 1;  // for loading weights
  // The same bits for a row in every batch: one algorithm per weight matrix, without split-K.
  bool batch_invariant = false;
};

}  // namespace kvern
