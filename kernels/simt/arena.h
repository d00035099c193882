// The shared memory of one block at a time: the launch's dynamic part and the static arrays, in the
// order in which the block's threads reach them.
//
// Each block finds every byte 0xFF (NaN as any floating-point type), so that what a kernel reads
// without having written it shows. With AddressSanitizer every byte that was not asked for is
// poisoned; with ThreadSanitizer each block gets memory that no other block has touched.
#pragma once

#include <cstddef>

namespace kvern::simt {

// CUDA C++ Programming Guide, "Technical specifications per compute capability", 8.0.
inline constexpr size_t kMaxSharedBytes = 163 * 1024;
inline constexpr size_t kMaxStaticSharedBytes = 48 * 1024;

class SharedArena {
 public:
  SharedArena() = default;
  ~SharedArena();
  SharedArena(const SharedArena&) = delete;
  SharedArena& operator=(const SharedArena&) = delete;

  // A new block with `dynamic_bytes` <= kMaxSharedBytes of dynamic shared memory begins; with its
  // static arrays it may have `limit`.
  void BeginBlock(size_t dynamic_bytes, size_t limit);

  // 16-byte aligned.
  void* dynamic() const { return memory_; }

  // The static array `key` of this block, aligned to `alignment` (a power of two up to 16) and, as
  // may happen on a GPU, to no more than that. Null when the block would have more than
  // kMaxStaticSharedBytes of them, more than limit() in all, or more than kMaxArrays.
  void* Static(const void* key, size_t bytes, size_t alignment);
  size_t limit() const { return limit_; }

  // Are [pointer, pointer + bytes) within one array of this block?
  bool Contains(const void* pointer, size_t bytes) const;

  static constexpr size_t kMaxArrays = 64;

 private:
  struct Array {
    const void* key;
    size_t offset;
    size_t bytes;
  };

  void Renew();
  void* Take(size_t offset, size_t bytes);

  char* memory_ = nullptr;
  Array arrays_[kMaxArrays + 1] = {};  // [0] is the dynamic part.
  size_t num_arrays_ = 0;
  size_t static_bytes_ = 0;
  size_t limit_ = kMaxSharedBytes;
  size_t end_ = 0;
};

}  // namespace kvern::simt
