// Asks for memory ahead of its use.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvern {

// The whole of `object`, or what of it is within the first `bytes`; harmless whatever it points to.
template <typename T>
inline void Prefetch(const T* object, size_t bytes = sizeof(T)) {
  constexpr size_t kCacheLine = 64;
  // As a number: it may be null, and an offset to that is undefined.
  const auto begin = reinterpret_cast<uintptr_t>(object);
  for (size_t at = 0; at < bytes; at += kCacheLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + at));
  }
}

}  // namespace kvern
