#include "kernels/simt/arena.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/simt/sanitizers.h"

namespace kvern::simt {
namespace {

constexpr size_t kAlignment = 128;
constexpr size_t kGapBytes = 64;  // Between arrays, so that an overrun is not the neighbour's data.
constexpr size_t kCapacity = kMaxSharedBytes + (SharedArena::kMaxArrays + 1) * 2 * kAlignment;
static_assert(kGapBytes <= kAlignment);
static_assert(kCapacity % kAlignment == 0);

size_t RoundUp(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

SharedArena::~SharedArena() {
  IgnoreAccesses ignore;
  if (memory_ != nullptr) UnpoisonMemory(memory_, kCapacity);
  std::free(memory_);
}

void SharedArena::Renew() {
#if !defined(KVERN_SIMT_TSAN)
  if (memory_ != nullptr) {
    PoisonMemory(memory_, end_);
    return;
  }
#endif
  std::free(memory_);
  memory_ = static_cast<char*>(std::aligned_alloc(kAlignment, kCapacity));
  if (memory_ == nullptr) std::abort();
  PoisonMemory(memory_, kCapacity);
}

void SharedArena::BeginBlock(size_t dynamic_bytes, size_t limit) {
  IgnoreAccesses ignore;
  Renew();
  num_arrays_ = 0;
  static_bytes_ = 0;
  limit_ = limit;
  Take(0, dynamic_bytes);
  arrays_[num_arrays_++] = {nullptr, 0, dynamic_bytes};
  end_ = RoundUp(dynamic_bytes + kGapBytes);
}

void* SharedArena::Take(size_t offset, size_t bytes) {
  UnpoisonMemory(memory_ + offset, bytes);
  std::memset(memory_ + offset, 0xff, bytes);
  return memory_ + offset;
}

void* SharedArena::Static(const void* key, size_t bytes, size_t alignment) {
  for (size_t i = 1; i < num_arrays_; ++i) {
    if (arrays_[i].key == key) return memory_ + arrays_[i].offset;
  }
  size_t total = static_bytes_ + bytes;
  if (total > kMaxStaticSharedBytes || arrays_[0].bytes + total > limit_ ||
      num_arrays_ > kMaxArrays) {
    return nullptr;
  }
  IgnoreAccesses ignore;
  size_t offset = end_ + alignment % 16;
  arrays_[num_arrays_++] = {key, offset, bytes};
  static_bytes_ = total;
  end_ = RoundUp(offset + bytes + kGapBytes);
  return Take(offset, bytes);
}

bool SharedArena::Contains(const void* pointer, size_t bytes) const {
  uintptr_t start = reinterpret_cast<uintptr_t>(pointer);
  for (size_t i = 0; i < num_arrays_; ++i) {
    uintptr_t array = reinterpret_cast<uintptr_t>(memory_ + arrays_[i].offset);
    if (start >= array && start + bytes <= array + arrays_[i].bytes) return true;
  }
  return false;
}

}  // namespace kvern::simt
