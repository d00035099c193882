// Identities and enumerations that travel between processes. Frozen: add, never change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "cluster/base/status.h"

namespace kvern {

// The one version both sides of a socket must agree on; a message of another version is refused.
inline constexpr uint32_t kProtocolVersion = 1;

// Tokens of one KV block, on every device.
inline constexpr uint32_t kBlockSize = 16;

// 128 bits, chosen by the client (its idempotency key) or drawn by whoever accepts the request.
struct RequestId {
  uint64_t high = 0;
  uint64_t low = 0;

  friend bool operator==(const RequestId&, const RequestId&) = default;
  friend auto operator<=>(const RequestId&, const RequestId&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const RequestId& id) {
    return H::combine(std::move(h), id.high, id.low);
  }

  bool IsZero() const { return high == 0 && low == 0; }
  // 32 lower-case hexadecimal digits.
  std::string ToString() const;
  static absl::StatusOr<RequestId> Parse(std::string_view text);
};

// One attempt at a request: +1 each time it is dispatched again. Tokens of an older epoch are
// dropped.
using Epoch = uint32_t;

// Drawn at random when a process (router, client, group) starts; tells a restart from a reconnect.
using Incarnation = uint64_t;

enum class ServiceClass : uint8_t { kGuaranteed = 0, kStandard = 1, kBatch = 2 };

enum class FinishReason : uint8_t {
  kNone = 0,    // The choice goes on.
  kStop = 1,    // EOS, a stop id or a stop string.
  kLength = 2,  // max_tokens.
};

// The codes a request can end with; their lower-case names are part of every client's interface.
enum class ErrorCode : uint8_t {
  kNone = 0,
  kInvalidArgument = 1,
  kUnsupportedParameter = 2,
  kNeverFits = 3,
  kOverloaded = 4,
  kDeadlineExceeded = 5,
  kQuotaExceeded = 6,
  kUnauthenticated = 7,
  kNotFound = 8,
  kCancelled = 9,
  kRequestKilledWorker = 10,
  kUnavailable = 11,
  kInternal = 12,
};
inline constexpr uint8_t kLastErrorCode = 12;

// "never_fits" and the like.
std::string_view ErrorCodeName(ErrorCode code);

}  // namespace kvern
