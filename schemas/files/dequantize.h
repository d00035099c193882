// Values of a model file as float32, one plain element at a time: what loaders and kernels are
// compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "schemas/files/dtype.h"

namespace kvern {

// IEEE binary16 and bfloat16 from their bits; exact, NaN stays NaN.
float FloatFromF16(uint16_t bits);
float FloatFromBf16(uint16_t bits);

// `out[i]` = element i of the row. `row` holds out.size() elements of `dtype` and has no alignment.
// REQUIRES: whole blocks: out.size() a multiple of block_elements, row.size() the bytes of as many.
void DequantizeRow(FileDtype dtype, std::span<const std::byte> row, std::span<float> out);

}  // namespace kvern
