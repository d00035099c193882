// Zeroed memory aligned for vectors; large pieces come from huge pages where the system has them.
#pragma once

#include <cstddef>
#include <memory>

#include "cluster/base/status.h"

namespace kvern {

// A piece of memory; movable. Its mapping ends with its last piece.
class AlignedMemory {
 public:
  AlignedMemory() = default;
  AlignedMemory(AlignedMemory&& other) noexcept { Swap(other); }
  AlignedMemory& operator=(AlignedMemory&& other) noexcept {
    Swap(other);
    return *this;
  }

  // A mapping of its own: at least one byte, aligned to 64 bytes, zero, not touched yet when large.
  // ResourceExhausted naming the bytes when the system refuses.
  static absl::StatusOr<AlignedMemory> Allocate(size_t bytes);

  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  friend class MemoryArena;

  void Swap(AlignedMemory& other);

  std::shared_ptr<void> mapping_;
  char* data_ = nullptr;
  size_t bytes_ = 0;
};

// Lays pieces side by side in large mappings. A model has many matrices smaller than a huge page or
// no multiple of one; on ordinary pages reading them waits for address translation: a step of many
// small matrices took a fifth longer. All calls from one thread. The pieces may outlive the arena.
class MemoryArena {
 public:
  // As AlignedMemory::Allocate. A freed piece is given back when all of its mapping are.
  absl::StatusOr<AlignedMemory> Allocate(size_t bytes);

 private:
  AlignedMemory chunk_;
  size_t used_ = 0;  // bytes of chunk_
};

}  // namespace kvern
