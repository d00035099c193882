// A regular file, opened for reading. Never mapped: a mapped file that shrinks is a SIGBUS.
#pragma once

#include <memory>
#include <string>

#include "schemas/files/byte_source.h"

namespace kvern {

class File final : public ByteSource {
 public:
  // Refuses what is not a regular file (folder, FIFO, device) without blocking on it. Symbolic
  // links are followed: model caches keep their files behind them.
  static absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path);
  ~File() override;

 private:
  File(std::string path, uint64_t size, int fd) : ByteSource(std::move(path), size), fd_(fd) {}

  // pread in a loop. An error if the file has shrunk since it was opened.
  absl::Status DoRead(uint64_t offset, std::span<std::byte> out) const override;

  int fd_;
};

}  // namespace kvern
