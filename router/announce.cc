#include "router/announce.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cluster/base/log.h"

namespace kvern {
namespace {

absl::Status WriteAll(int fd, std::string_view bytes, std::string_view what) {
  while (!bytes.empty()) {
    ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoStatus(what, errno);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

std::string AsLine(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::Status WriteByRename(const std::string& path, const std::string& bytes) {
  std::string beside = absl::StrCat(path, ".", getpid());
  int fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return ErrnoStatus("--ready-file: " + beside, errno);
  absl::Status status = WriteAll(fd, bytes, "--ready-file: " + beside);
  close(fd);
  if (status.ok() && rename(beside.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus("--ready-file: " + path, errno);
  }
  if (!status.ok()) unlink(beside.c_str());
  return status;
}

}  // namespace

Announcer::~Announcer() {
  if (!ready_file_.empty()) unlink(ready_file_.c_str());
}

absl::Status Announcer::Bound(const RouterAddresses& addresses) {
  addresses_ = addresses;
  if (!ready_file_.empty()) unlink(ready_file_.c_str());  // Of a router that was killed.
  if (ready_fd_ < 0) return absl::OkStatus();
  return WriteAll(ready_fd_,
                  AsLine({{"endpoint", addresses.endpoint},
                          {"worker_endpoint", addresses.worker_endpoint},
                          {"status", addresses.status},
                          {"pid", getpid()}}),
                  "--ready-fd");
}

absl::Status Announcer::Ready() {
  if (ready_fd_ >= 0) {
    KVERN_RETURN_IF_ERROR(WriteAll(ready_fd_, AsLine({{"ready", true}}), "--ready-fd"));
  }
  if (!ready_file_.empty()) {
    KVERN_RETURN_IF_ERROR(WriteByRename(ready_file_, AsLine({{"endpoint", addresses_.endpoint},
                                                             {"status", addresses_.status},
                                                             {"pid", getpid()}})));
  }
  return WriteAll(STDOUT_FILENO, absl::StrCat("ready ", addresses_.endpoint, "\n"), "stdout");
}

void Announcer::GivenUp(const std::string& group, uint64_t incarnation, const std::string& reason) {
  // Together with a group's name, each byte as \u00XX, less than a pipe with room takes at once.
  constexpr size_t kMostReasonBytes = 256;
  pollfd entry = {ready_fd_, POLLOUT, 0};
  if (ready_fd_ < 0 || poll(&entry, 1, 0) <= 0 || (entry.revents & POLLOUT) == 0) return;
  absl::Status said = WriteAll(ready_fd_,
                               AsLine({{"given_up", group},
                                       {"incarnation", incarnation},
                                       {"reason", reason.substr(0, kMostReasonBytes)}}),
                               "--ready-fd");
  if (said.ok()) return;
  Log(LogLevel::kWarning, "group_given_up_not_announced", {{"error", said.message()}});
}

}  // namespace kvern
