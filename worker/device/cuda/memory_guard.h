// Memory that nobody may touch: AddressSanitizer sees it where the GPU is emulated, for its memory
// is the host's. In every other build there is none.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#ifdef KVERN_EMULATED_CUDA  // by the stand-in for <cuda_runtime.h>
#include "kernels/simt/sanitizers.h"
#endif

namespace kvern::inline KVERN_GPU_BUILD {

#if defined(KVERN_EMULATED_CUDA) && defined(KVERN_SIMT_ASAN)
// Behind each piece of an arena, at least.
inline constexpr size_t kGuardBytes = 256;
inline void ForbidMemory(const void* begin, size_t bytes) { simt::PoisonMemory(begin, bytes); }
inline void AllowMemory(const void* begin, size_t bytes) { simt::UnpoisonMemory(begin, bytes); }
#else
inline constexpr size_t kGuardBytes = 0;
inline void ForbidMemory(const void*, size_t) {}
inline void AllowMemory(const void*, size_t) {}
#endif

}  // namespace kvern::inline KVERN_GPU_BUILD
