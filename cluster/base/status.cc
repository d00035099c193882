#include "cluster/base/status.h"

#include <cerrno>
#include <cstring>

namespace kvern {

absl::Status ErrnoStatus(std::string_view action, int error_number) {
  char buffer[128];
  const char* text = strerror_r(error_number, buffer, sizeof(buffer));
  std::string message = absl::StrCat(ToAbsl(action), ": ", text);
  if (error_number == ENOENT) return absl::NotFoundError(message);
  if (error_number == EACCES || error_number == EPERM) return absl::PermissionDeniedError(message);
  if (error_number == ENOMEM || error_number == EMFILE) return ResourceExhausted(message);
  return FailedPrecondition(message);
}

}  // namespace kvern
