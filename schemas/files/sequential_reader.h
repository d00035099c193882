// Walks through the head of a binary file with a small window, so that what a file claims about its
// own sizes never decides how much memory is taken.
#pragma once

#include <bit>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "schemas/files/byte_source.h"

namespace kvern {

static_assert(std::endian::native == std::endian::little, "model files are little-endian");

// Not thread-safe. Every error names the file, what was being read, the offset and the file's size.
class SequentialReader {
 public:
  // Reads from byte `offset`; refuses to go beyond byte `limit` even when the file is longer.
  SequentialReader(const ByteSource& source, uint64_t offset, uint64_t limit);

  uint64_t offset() const { return offset_; }
  // What is being read, for errors.
  void set_context(std::string context) { context_ = std::move(context); }

  template <typename T>
  absl::Status Read(T* value) {
    static_assert(std::is_arithmetic_v<T>);
    KVERN_RETURN_IF_ERROR(Need(sizeof(T)));
    std::memcpy(value, Window(), sizeof(T));
    offset_ += sizeof(T);
    return absl::OkStatus();
  }

  // `count` elements of `element_bytes` each, skipped without reading them.
  absl::Status Skip(uint64_t count, uint64_t element_bytes = 1);

  // A length (u64) and as many bytes. Refuses more than `max_bytes`.
  absl::Status ReadString(uint64_t max_bytes, std::string* text);

  absl::Status Error(const std::string& problem) const;

 private:
  static constexpr uint64_t kWindowBytes = 64 << 10;

  // Makes `bytes` (at most kWindowBytes) available at Window().
  absl::Status Need(uint64_t bytes);
  absl::Status EndsInside(uint64_t bytes) const;
  const std::byte* Window() const { return window_.data() + (offset_ - window_start_); }

  const ByteSource& source_;
  uint64_t offset_;
  uint64_t limit_;
  std::string context_;
  std::vector<std::byte> window_;
  uint64_t window_start_ = 0;
};

}  // namespace kvern
