// Where the KV cache lies in device memory.
#pragma once

#include <cstdint>

namespace kvern::gpu {

enum class KvType : uint8_t { kF32, kBf16 };

struct KvPages {
  void* data = nullptr;
  KvType type = KvType::kBf16;
  int32_t layers = 0;
  int32_t kv_heads = 0;
  int32_t head_dim = 0;
};

}  // namespace kvern::gpu
