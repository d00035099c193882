// The file of an ipc:// endpoint. ZeroMQ removes whatever lies at the path before it binds, be it a
// document or the socket of a service that runs, and leaves its own file behind.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "cluster/base/status.h"

namespace kvern {

// OK if `endpoint` is not of a file, or nothing lies at its path but a socket that nobody listens
// on: what a killed process left. failed_precondition: another kind of file. unavailable: somebody
// listens there.
absl::Status CheckIpcFile(std::string_view endpoint);

// Numbers of inodes are given again, so the time at which one began belongs to it.
struct FileIdentity {
  uint32_t device_major = 0;
  uint32_t device_minor = 0;
  uint64_t inode = 0;
  int64_t born_s = 0;
  uint32_t born_ns = 0;
  bool operator==(const FileIdentity&) const = default;
};

// Removes at its end the file that a bind made, unless another lies there by then.
class IpcFile {
 public:
  IpcFile() = default;
  // Of what was bound just now. Of other endpoints than those of a file: nothing to remove.
  explicit IpcFile(std::string_view endpoint);
  IpcFile(IpcFile&& other) noexcept;
  IpcFile& operator=(IpcFile&& other) noexcept;
  ~IpcFile() { Remove(); }

 private:
  void Remove();

  std::string path_;
  std::optional<FileIdentity> identity_;  // nothing: no file to remove
};

}  // namespace kvern
