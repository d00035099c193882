// Group quantisation at load, for --weights int8 and int4 of files that hold wider types. Blocks
// are those of the file types Q8_0 and Q4_1 (schemas/files/dtype.h), so devices read one encoding.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "schemas/files/dtype.h"

namespace kvern {

// `values` as blocks of `target` (kQ8_0 or kQ4_1), into `out` (resized). REQUIRES: whole blocks
// of 32. Q8_0: symmetric, scale = largest magnitude / 127. Q4_1: scale = range / 15, offset =
// minimum. Codes are rounded to nearest against the scale as stored.
void QuantizeRow(FileDtype target, std::span<const float> values, std::vector<std::byte>& out);

}  // namespace kvern
