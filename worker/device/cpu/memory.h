// Zeroed memory aligned for vectors; large pieces come from huge pages where the system has them.
#pragma once

#include <cstddef>

#include "cluster/base/status.h"

namespace kvern {

// Owns its memory; movable.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  AlignedMemory(AlignedMemory&& other) noexcept { Swap(other); }
  AlignedMemory& operator=(AlignedMemory&& other) noexcept {
    Swap(other);
    return *this;
  }
  ~AlignedMemory();

  // At least one byte, aligned to 64 bytes, zero, not touched yet when large. ResourceExhausted
  // naming the bytes when the system refuses.
  static absl::StatusOr<AlignedMemory> Allocate(size_t bytes);

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void Swap(AlignedMemory& other);

  void* mapping_ = nullptr;
  size_t mapping_bytes_ = 0;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace kvern
