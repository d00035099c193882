// Element types that model files hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvern {

// Q8_0: blocks of 32 int8 with one f16 scale (34 bytes). Q4_0: 32 4-bit codes, w = d (q - 8), f16 d
// (18 bytes). Q4_1: w = d q + m, f16 d and m (20 bytes). Source: ggml's gguf documentation.
enum class FileDtype : uint8_t { kF32, kF16, kBf16, kQ8_0, kQ4_0, kQ4_1 };

struct FileDtypeInfo {
  std::string_view name;
  size_t block_elements;  // Rows must be a whole number of blocks.
  size_t block_bytes;
};

constexpr FileDtypeInfo Info(FileDtype dtype) {
  constexpr FileDtypeInfo kInfos[] = {{"F32", 1, 4},    {"F16", 1, 2},    {"BF16", 1, 2},
                                      {"Q8_0", 32, 34}, {"Q4_0", 32, 18}, {"Q4_1", 32, 20}};
  return kInfos[static_cast<size_t>(dtype)];
}

}  // namespace kvern
