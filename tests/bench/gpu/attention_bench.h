// Attention over a grid of batch, context and heads, as a share of the GPU's own limits.
#pragma once

#include "tests/bench/gpu/device_limits.h"
#include "tests/bench/gpu/report.h"

namespace kvern::gpu {

void BenchAttention(bool smoke, const DeviceLimits& limits, Report& report);

}  // namespace kvern::gpu
