#include "cluster/base/ready_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvern {
namespace {

// A ready line has a few hundred bytes.
constexpr size_t kMaxLineBytes = 64 * 1024;
// Names beside the path that may be taken by what processes with our number left.
constexpr int kMaxBeside = 100;

absl::Status Refused(const std::string& path, std::string_view why) {
  return FailedPrecondition("--ready-file: '", path, "' ", ToAbsl(why),
                            ", allowed: a path where nothing is, an empty file, or a ready "
                            "file that a service left behind");
}

const char* KindOf(mode_t mode) {
  if (S_ISDIR(mode)) return "is a folder";
  if (S_ISLNK(mode)) return "is a symbolic link";
  return "is not a regular file";
}

// The pid in the ready line at `path`; nothing if no file is there, or an empty one (mktemp's).
absl::StatusOr<std::optional<int64_t>> PidIn(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return std::nullopt;
    return ErrnoStatus("--ready-file: " + path, errno);
  }
  // Before it is opened: opening a fifo or a device does something.
  if (!S_ISREG(info.st_mode)) return Refused(path, KindOf(info.st_mode));
  int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus("--ready-file: " + path, errno);
  std::string line(kMaxLineBytes, '\0');
  ssize_t got = read(fd, line.data(), line.size());
  close(fd);
  if (got == 0) return std::nullopt;
  line.resize(got < 0 ? 0 : static_cast<size_t>(got));
  nlohmann::json json = nlohmann::json::parse(line, nullptr, false);
  auto holds = [&](const char* key) { return json.is_object() && json.contains(key); };
  if (!holds("endpoint") || !holds("status") || !holds("pid") ||
      !json["pid"].is_number_unsigned()) {
    return Refused(path, "is not a ready file");
  }
  return json["pid"].get<int64_t>();
}

// Whether `pid` runs a program that writes ready files. A number is given to others later, and one
// that was killed and not yet waited for has no program any more.
bool Serves(int64_t pid) {
  char program[4096];
  std::string link = absl::StrCat("/proc/", pid, "/exe");
  ssize_t size = readlink(link.c_str(), program, sizeof(program));
  if (size <= 0 || pid == getpid()) return false;
  std::string_view name(program, static_cast<size_t>(size));
  name.remove_prefix(name.rfind('/') + 1);
  return name.starts_with("kvern-launch") || name.starts_with("kvern-router");
}

}  // namespace

absl::Status WriteAll(int fd, std::string_view bytes, std::string_view what) {
  while (!bytes.empty()) {
    ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoStatus(what, errno);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

std::string ReadyLine(std::string_view endpoint, std::string_view status) {
  nlohmann::ordered_json json = {{"endpoint", endpoint}, {"status", status}, {"pid", getpid()}};
  return json.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) + "\n";
}

absl::Status ReadyFile::Check() const {
  if (path_.empty()) return absl::OkStatus();
  KVERN_ASSIGN_OR_RETURN(std::optional<int64_t> pid, PidIn(path_));
  if (pid.has_value() && Serves(*pid)) {
    return Refused(path_, absl::StrCat("is of process ", *pid, ", which still serves"));
  }
  // Known now, not only when all groups are live.
  std::string folder = std::filesystem::path(path_).parent_path();
  if (access(folder.empty() ? "." : folder.c_str(), W_OK | X_OK) != 0) {
    return ErrnoStatus(absl::StrCat("--ready-file: cannot write into the folder of ", path_),
                       errno);
  }
  return absl::OkStatus();
}

absl::Status ReadyFile::Clear() const {
  KVERN_RETURN_IF_ERROR(Check());
  if (!path_.empty() && unlink(path_.c_str()) != 0 && errno != ENOENT) {
    return ErrnoStatus("--ready-file: " + path_, errno);
  }
  return absl::OkStatus();
}

absl::Status ReadyFile::Write(std::string_view endpoint, std::string_view status) {
  if (path_.empty()) return absl::OkStatus();
  std::string beside;
  int fd = -1;
  // O_EXCL: what lies beside the path is not ours either.
  for (int i = 0; i < kMaxBeside && fd < 0; ++i) {
    beside = absl::StrCat(path_, ".", getpid(), ".", i);
    fd = open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno != EEXIST) break;
  }
  if (fd < 0) return ErrnoStatus("--ready-file: " + beside, errno);
  absl::Status written = WriteAll(fd, ReadyLine(endpoint, status), "--ready-file: " + beside);
  close(fd);
  if (written.ok()) written = Check();  // Somebody may have put something there meanwhile.
  if (written.ok() && rename(beside.c_str(), path_.c_str()) != 0) {
    written = ErrnoStatus("--ready-file: " + path_, errno);
  }
  if (!written.ok()) unlink(beside.c_str());
  written_ = written.ok();
  return written;
}

void ReadyFile::Remove() {
  if (!written_) return;
  written_ = false;
  absl::StatusOr<std::optional<int64_t>> pid = PidIn(path_);
  if (pid.ok() && *pid == std::optional<int64_t>(getpid())) unlink(path_.c_str());
}

}  // namespace kvern
