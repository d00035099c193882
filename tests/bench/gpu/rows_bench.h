// The kernels that work row by row: bound by bandwidth, and too small to fill a GPU when rows are
// few.
#pragma once

#include "tests/bench/gpu/device_limits.h"
#include "tests/bench/gpu/report.h"

namespace kvern::gpu {

void BenchRows(bool smoke, const DeviceLimits& limits, Report& report);

}  // namespace kvern::gpu
