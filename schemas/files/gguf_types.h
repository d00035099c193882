// The tables behind gguf.cc: sizes and names of metadata types and of ggml's tensor types.
#pragma once

#include <cstdint>

#include "schemas/files/gguf.h"

namespace kvern {

// Null: an unknown number.
const GgmlType* FindGgmlType(uint32_t number);

// Bytes of one value of a fixed size; 0 for strings and arrays.
uint64_t GgufTypeBytes(GgufType type);
const char* GgufTypeName(GgufType type);
inline constexpr uint32_t kGgufTypeCount = 13;

}  // namespace kvern
