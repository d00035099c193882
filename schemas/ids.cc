#include "schemas/ids.h"

#include <charconv>

#include "absl/strings/str_format.h"

namespace kvern {

std::string RequestId::ToString() const { return absl::StrFormat("%016x%016x", high, low); }

absl::StatusOr<RequestId> RequestId::Parse(std::string_view text) {
  RequestId id;
  bool ok = text.size() == 32;
  if (ok) {
    auto [high_end, high_error] = std::from_chars(text.data(), text.data() + 16, id.high, 16);
    auto [low_end, low_error] = std::from_chars(text.data() + 16, text.data() + 32, id.low, 16);
    ok = high_error == std::errc() && low_error == std::errc() && high_end == text.data() + 16 &&
         low_end == text.data() + 32;
  }
  if (!ok || id.IsZero()) {
    return InvalidArgument("request_id '", ToAbsl(text.substr(0, 40)),
                           "' is not 32 hexadecimal digits, not all zero");
  }
  return id;
}

std::string_view ErrorCodeName(ErrorCode code) {
  static constexpr std::string_view kNames[] = {
      "none",       "invalid_argument",  "unsupported_parameter", "never_fits",
      "overloaded", "deadline_exceeded", "quota_exceeded",        "unauthenticated",
      "not_found",  "cancelled",         "request_killed_worker", "unavailable",
      "internal"};
  return kNames[static_cast<size_t>(code)];
}

}  // namespace kvern
