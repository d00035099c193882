// Short makers and macros around absl::Status, the error type of every interface of ours.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace kvern {

// Debian builds abseil with its own absl::string_view; these convert at the border.
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

template <typename... Args>
absl::Status InvalidArgument(const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(args...));
}
template <typename... Args>
absl::Status FailedPrecondition(const Args&... args) {
  return absl::FailedPreconditionError(absl::StrCat(args...));
}
template <typename... Args>
absl::Status Unimplemented(const Args&... args) {
  return absl::UnimplementedError(absl::StrCat(args...));
}
template <typename... Args>
absl::Status Unavailable(const Args&... args) {
  return absl::UnavailableError(absl::StrCat(args...));
}
template <typename... Args>
absl::Status Internal(const Args&... args) {
  return absl::InternalError(absl::StrCat(args...));
}
template <typename... Args>
absl::Status ResourceExhausted(const Args&... args) {
  return absl::ResourceExhaustedError(absl::StrCat(args...));
}

// "action: strerror(error_number)", for system calls.
absl::Status ErrnoStatus(std::string_view action, int error_number);

}  // namespace kvern

#define KVERN_CONCAT_INNER(a, b) a##b
#define KVERN_CONCAT(a, b) KVERN_CONCAT_INNER(a, b)

// Returns the status of `expression` from the enclosing function unless it is OK.
#define KVERN_RETURN_IF_ERROR(expression)          \
  do {                                             \
    absl::Status kvern_status_ = (expression);     \
    if (!kvern_status_.ok()) return kvern_status_; \
  } while (false)

// KVERN_ASSIGN_OR_RETURN(auto x, F()): x = the value of the StatusOr, or returns its status.
#define KVERN_ASSIGN_OR_RETURN(target, expression) \
  KVERN_ASSIGN_OR_RETURN_IMPL(KVERN_CONCAT(kvern_result_, __LINE__), target, expression)
#define KVERN_ASSIGN_OR_RETURN_IMPL(result, target, expression) \
  auto result = (expression);                                   \
  if (!result.ok()) return std::move(result).status();          \
  target = std::move(result).value()
