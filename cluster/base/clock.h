// The one place that reads the clock. The cores must not include this file (tests/tidy_test.cc).
#pragma once

#include "cluster/base/time.h"

namespace kvern {

// CLOCK_MONOTONIC in nanoseconds. Thread-safe.
Time MonotonicNow();

// Milliseconds since 1970 in UTC, for log lines only: it may jump.
int64_t WallClockMs();

}  // namespace kvern
