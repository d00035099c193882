// The file that tells whoever waits for a service that it is ready: one line of JSON, whole from
// the moment it exists. Its path is a user's, so whatever else lies there stays.
#pragma once

#include <string>
#include <string_view>

#include "cluster/base/status.h"

namespace kvern {

// Writes all of `bytes`; an error begins with `what`.
absl::Status WriteAll(int fd, std::string_view bytes, std::string_view what);

class ReadyFile {
 public:
  // An empty path: no file, everything succeeds and does nothing.
  explicit ReadyFile(std::string path) : path_(std::move(path)) {}
  // Removes what Write made, unless somebody replaced it.
  ~ReadyFile() { Remove(); }
  ReadyFile(const ReadyFile&) = delete;
  ReadyFile& operator=(const ReadyFile&) = delete;

  // OK if nothing is at the path, or a regular file with the ready line of a service that ended
  // without removing it. Changes nothing; errors name --ready-file, the path and why.
  absl::Status Check() const;
  // Check, then removes that line: from now on the file would be ours.
  absl::Status Clear() const;
  // Check, then the file appears by rename with {"endpoint","status","pid"}, this process's pid.
  absl::Status Write(std::string_view endpoint, std::string_view status);
  void Remove();

 private:
  std::string path_;
  bool written_ = false;
};

// The line that Write writes, newline included.
std::string ReadyLine(std::string_view endpoint, std::string_view status);

}  // namespace kvern
