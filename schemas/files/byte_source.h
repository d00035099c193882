// Where the bytes of a model file come from: a file on disk, or memory in tests and fuzz targets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "cluster/base/status.h"

namespace kvern {

// Reads are const and thread-safe. The size is fixed at construction.
class ByteSource {
 public:
  ByteSource(std::string name, uint64_t size) : name_(std::move(name)), size_(size) {}
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;
  virtual ~ByteSource() = default;

  // For error texts: a path.
  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }  // bytes

  // Fills `out` from byte `offset` on, all of it or an error that names the range and the size.
  absl::Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  // REQUIRES: the range is inside the size.
  virtual absl::Status DoRead(uint64_t offset, std::span<std::byte> out) const = 0;

  std::string name_;
  uint64_t size_;
};

// Bytes in memory.
class MemorySource final : public ByteSource {
 public:
  MemorySource(std::string name, std::string bytes)
      : ByteSource(std::move(name), bytes.size()), bytes_(std::move(bytes)) {}

 private:
  absl::Status DoRead(uint64_t offset, std::span<std::byte> out) const override;

  std::string bytes_;
};

// For error texts: control bytes escaped, at most 96 characters, in quotes. Names come from files.
std::string Quoted(std::string_view text);

}  // namespace kvern
