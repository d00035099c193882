// What AddressSanitizer and ThreadSanitizer are told about fibers, shared memory and barriers.
// Everything here is empty in a build without them.
//
// With ThreadSanitizer each CUDA thread is a thread of its own, and only __syncthreads, __syncwarp
// and __threadfence order anything. The emulator's own sources are compiled without the
// instrumentation (CMakeLists.txt defines KVERN_SIMT_TSAN for them instead), so that only what
// kernels do is checked; what a collective does on behalf of a kernel is in header code or in
// async_copy.cc, which are instrumented.
#pragma once

#include <cstddef>

#if defined(__has_feature)
#define KVERN_SIMT_HAS_FEATURE(name) __has_feature(name)
#else
#define KVERN_SIMT_HAS_FEATURE(name) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || KVERN_SIMT_HAS_FEATURE(address_sanitizer)
#define KVERN_SIMT_ASAN 1
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(KVERN_SIMT_TSAN) && \
    (defined(__SANITIZE_THREAD__) || KVERN_SIMT_HAS_FEATURE(thread_sanitizer))
#define KVERN_SIMT_TSAN 1
#endif
#if defined(KVERN_SIMT_TSAN)
#include <sanitizer/tsan_interface.h>

#include <cstdlib>
// Exported by the runtime, declared in no header.
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace kvern::simt {

// From here to the end of the scope nothing counts as an access for ThreadSanitizer, and memory
// that is allocated or freed is as good as never touched before.
class IgnoreAccesses {
 public:
#if defined(KVERN_SIMT_TSAN)
  IgnoreAccesses() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~IgnoreAccesses() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  IgnoreAccesses() {}   // Not defaulted, so that a variable of this type
  ~IgnoreAccesses() {}  // is not reported as unused.
#endif
  IgnoreAccesses(const IgnoreAccesses&) = delete;
  IgnoreAccesses& operator=(const IgnoreAccesses&) = delete;
};

// The order made by one barrier, once: what a thread did before Arrive() comes before what any
// other does after Leave(). Copies are the same order. Each barrier instance has a new one: with
// one that is used again, a thread that leaves late would also acquire what others did after they
// had left.
class BarrierOrder {
 public:
#if defined(KVERN_SIMT_TSAN)
  static BarrierOrder Create() {
    IgnoreAccesses ignore;
    BarrierOrder order;
    order.users_ = static_cast<int*>(std::calloc(1, sizeof(int)));
    return order;
  }
  void Arrive() {
    ++*users_;
    __tsan_release(users_);
  }
  void Leave() {
    __tsan_acquire(users_);
    if (--*users_ > 0) return;
    IgnoreAccesses ignore;
    std::free(users_);  // With it the runtime forgets the order kept for this address.
  }

 private:
  int* users_ = nullptr;
#else
  static BarrierOrder Create() { return {}; }
  void Arrive() {}
  void Leave() {}
#endif
};

// An order that lasts: of a launch before its threads, of threads before the launch's return.
class LastingOrder {
 public:
#if defined(KVERN_SIMT_TSAN)
  void Release() { __tsan_release(&address_); }
  void Acquire() { __tsan_acquire(&address_); }

 private:
  char address_ = 0;
#else
  void Release() {}
  void Acquire() {}
#endif
};

inline void PoisonMemory([[maybe_unused]] const void* start, [[maybe_unused]] size_t bytes) {
#if defined(KVERN_SIMT_ASAN)
  ASAN_POISON_MEMORY_REGION(start, bytes);
#endif
}

inline void UnpoisonMemory([[maybe_unused]] const void* start, [[maybe_unused]] size_t bytes) {
#if defined(KVERN_SIMT_ASAN)
  ASAN_UNPOISON_MEMORY_REGION(start, bytes);
#endif
}

}  // namespace kvern::simt
