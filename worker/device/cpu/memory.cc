#include "worker/device/cpu/memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <utility>

namespace kvern {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

AlignedMemory::~AlignedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, mapping_bytes_);
}

void AlignedMemory::Swap(AlignedMemory& other) {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
}

absl::StatusOr<AlignedMemory> AlignedMemory::Allocate(size_t bytes) {
  const bool huge = bytes >= kHugePage;
  AlignedMemory memory;
  memory.bytes_ = bytes;
  void* mapping = MAP_FAILED;
  if (!__builtin_add_overflow(bytes, huge ? kHugePage : size_t{1}, &memory.mapping_bytes_)) {
    mapping = mmap(nullptr, memory.mapping_bytes_, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  }
  if (mapping == MAP_FAILED) {
    return ResourceExhausted("cannot allocate ", bytes, " bytes of memory");
  }
  memory.mapping_ = mapping;
  memory.data_ = static_cast<char*>(mapping);
  if (huge) {
    const size_t misaligned = reinterpret_cast<uintptr_t>(mapping) % kHugePage;
    if (misaligned != 0) memory.data_ += kHugePage - misaligned;
    // Only advice: a system without huge pages is slower, not wrong.
    madvise(memory.data_, bytes, MADV_HUGEPAGE);
  }
  return memory;
}

}  // namespace kvern
