#include "cluster/launch/announce.h"

#include <unistd.h>

#include "cluster/launch/child_process.h"

namespace kvern {

absl::Status AnnounceReady(const LaunchConfig& config, const RouterAddresses& addresses,
                           ReadyFile& ready_file) {
  KVERN_RETURN_IF_ERROR(ready_file.Write(addresses.endpoint, addresses.status));
  if (config.ready_fd >= 0) {
    Fd fd(static_cast<int>(config.ready_fd));
    KVERN_RETURN_IF_ERROR(WriteAll(fd.get(), ReadyLine(addresses.endpoint, addresses.status),
                                   absl::StrCat("--ready-fd ", fd.get())));
    // Standard descriptors stay open: something else would get their numbers.
    if (fd.get() <= 2) fd.Release();
  }
  return WriteAll(STDOUT_FILENO, absl::StrCat("ready ", addresses.endpoint, "\n"), "stdout");
}

}  // namespace kvern
