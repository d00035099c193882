// Views of device memory. A view owns nothing; shapes and strides are in elements.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvern {

enum class DType : uint8_t { kF32, kBf16 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

// A row-major matrix of activations: [rows, cols], row r starts at data + r * stride elements.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  float* f32() const { return static_cast<float*>(data); }

  // The same rows, columns [begin, begin + count).
  Tensor Columns(int64_t begin, int64_t count) const {
    Tensor view = *this;
    view.data = static_cast<char*>(data) + static_cast<size_t>(begin) * SizeOf(dtype);
    view.cols = count;
    return view;
  }
  // The first `count` rows.
  Tensor FirstRows(int64_t count) const {
    Tensor view = *this;
    view.rows = count;
    return view;
  }
};

}  // namespace kvern
