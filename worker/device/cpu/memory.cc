#include "worker/device/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace kvern {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPieceAlignment = 64;
// Address space only: pages that no piece reaches are never touched.
constexpr size_t kChunkBytes = size_t{64} << 20;
// A larger piece gets its own mapping, so that less than a quarter of a chunk stays unused.
constexpr size_t kMaxPieceBytes = kChunkBytes / 4;

}  // namespace

void AlignedMemory::Swap(AlignedMemory& other) {
  std::swap(mapping_, other.mapping_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

absl::StatusOr<AlignedMemory> AlignedMemory::Allocate(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  size_t mapping_bytes = 0;
  void* mapping = MAP_FAILED;
  if (!__builtin_add_overflow(bytes, huge ? kHugePage : size_t{1}, &mapping_bytes)) {
    mapping =
        mmap(nullptr, mapping_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    return ResourceExhausted("cannot allocate ", bytes, " bytes of memory");
  }
  AlignedMemory memory;
  memory.mapping_ =
      std::shared_ptr<void>(mapping, [mapping_bytes](void* base) { munmap(base, mapping_bytes); });
  memory.data_ = static_cast<char*>(mapping);
  memory.bytes_ = bytes;
  if (huge) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(mapping) % kHugePage;
    if (misaligned != 0) memory.data_ += kHugePage - misaligned;
    // Only advice: a system without huge pages is slower, not wrong.
    madvise(memory.data_, bytes, MADV_HUGEPAGE);
  }
  return memory;
}

absl::StatusOr<AlignedMemory> MemoryArena::Allocate(size_t bytes) {
  if (bytes > kMaxPieceBytes) return AlignedMemory::Allocate(bytes);
  if (chunk_.bytes() - used_ < bytes) {
    KVERN_ASSIGN_OR_RETURN(chunk_, AlignedMemory::Allocate(kChunkBytes));
    used_ = 0;
  }
  AlignedMemory piece;
  piece.mapping_ = chunk_.mapping_;
  piece.data_ = chunk_.data_ + used_;
  piece.bytes_ = bytes;
  used_ += (bytes + kPieceAlignment - 1) / kPieceAlignment * kPieceAlignment;
  return piece;
}

}  // namespace kvern
