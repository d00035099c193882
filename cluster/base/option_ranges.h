// What the values of options may be that more than one program has: the launcher refuses what its
// router or its workers would, before it starts them.
#pragma once

#include <cstdint>

#include "cluster/base/options.h"
#include "cluster/base/time.h"

namespace kvern {

inline constexpr SizeRange kKvMemoryRange{.least = 1};
inline constexpr SizeRange kQueueBytesRange{.least = 1 << 10};
// One stream's deltas of a turn are kept at least, or every pause would end its stream.
inline constexpr SizeRange kClientBufferRange{.least = 64 << 10};
inline constexpr TimeRange kTtftDeadlineRange{kMillisecond, 24 * 3600 * kSecond};
inline constexpr TimeRange kSlowReaderRange{kMillisecond, 24 * 3600 * kSecond};
inline constexpr TimeRange kJoinTimeoutRange{kSecond, 570 * kSecond};

}  // namespace kvern
