// Asks for memory ahead of its use.
#pragma once

#include <cstddef>

namespace kvern {

// The whole of `object`, or what of it is within the first `bytes`; harmless whatever it points to.
template <typename T>
inline void Prefetch(const T* object, size_t bytes = sizeof(T)) {
  constexpr size_t kCacheLine = 64;
  const char* begin = reinterpret_cast<const char*>(object);
  for (size_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(begin + at);
}

}  // namespace kvern
