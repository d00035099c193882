// What the GPU reaches with nothing of ours: the yardsticks.
#pragma once

#include "tests/bench/gpu/report.h"

namespace kvern::gpu {

// 0: could not be measured.
struct DeviceLimits {
  double bytes_per_second = 0;  // device to device copies, bytes read + bytes written
  double flops_per_second = 0;  // a large bf16 product with float32 sums, by cuBLASLt
};

DeviceLimits MeasureLimits(bool smoke, Report& report);

}  // namespace kvern::gpu
