#include "cluster/launch/announce.h"

#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>

#include "cluster/launch/child_process.h"

namespace kvern {
namespace {

absl::Status WriteAll(int fd, const std::string& bytes, const std::string& what) {
  size_t done = 0;
  while (done < bytes.size()) {
    ssize_t wrote = write(fd, bytes.data() + done, bytes.size() - done);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoStatus(what, errno);
    done += static_cast<size_t>(wrote);
  }
  return absl::OkStatus();
}

absl::Status WriteReadyFile(const std::string& path, const std::string& line) {
  std::string beside = absl::StrCat(path, ".", getpid());
  Fd file(open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return ErrnoStatus("--ready-file: " + beside, errno);
  absl::Status written = WriteAll(file.get(), line, "--ready-file: " + beside);
  if (written.ok() && rename(beside.c_str(), path.c_str()) != 0) {
    written = ErrnoStatus("--ready-file: " + path, errno);
  }
  if (!written.ok()) unlink(beside.c_str());
  return written;
}

}  // namespace

absl::Status AnnounceReady(const LaunchConfig& config, const RouterAddresses& addresses) {
  nlohmann::ordered_json json = {
      {"endpoint", addresses.endpoint}, {"status", addresses.status}, {"pid", getpid()}};
  std::string line = json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
  if (!config.ready_file.empty()) KVERN_RETURN_IF_ERROR(WriteReadyFile(config.ready_file, line));
  if (config.ready_fd >= 0) {
    Fd fd(static_cast<int>(config.ready_fd));
    KVERN_RETURN_IF_ERROR(WriteAll(fd.get(), line, absl::StrCat("--ready-fd ", fd.get())));
    // Standard descriptors stay open: something else would get their numbers.
    if (fd.get() <= 2) fd.Release();
  }
  return WriteAll(STDOUT_FILENO, absl::StrCat("ready ", addresses.endpoint, "\n"), "stdout");
}

void RemoveReadyFile(const LaunchConfig& config) {
  if (!config.ready_file.empty()) unlink(config.ready_file.c_str());
}

}  // namespace kvern
