#include "worker/device/cuda/cuda_matrix.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "cluster/base/check.h"

namespace kvern::inline KVERN_GPU_BUILD {
namespace {

uint16_t Bf16FromF32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// IEEE 754 binary16.
float F32FromF16(uint16_t half) {
  const float sign = (half & 0x8000) != 0 ? -1.0f : 1.0f;
  const int exponent = (half >> 10) & 0x1f;
  const auto mantissa = static_cast<float>(half & 0x3ff);
  if (exponent == 0) return sign * std::ldexp(mantissa, -24);
  if (exponent == 31) return mantissa == 0 ? sign * INFINITY : NAN;
  return sign * std::ldexp(1024.0f + mantissa, exponent - 25);
}

template <typename T, typename Convert>
void ConvertAll(std::span<const std::byte> source, uint16_t* out, Convert convert) {
  for (size_t i = 0; i < source.size() / sizeof(T); ++i) {
    T value;
    std::memcpy(&value, source.data() + i * sizeof(T), sizeof(T));
    out[i] = convert(value);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Matrix>> CudaMatrix::Create(CudaContext& context, DeviceArena& arena,
                                                           int64_t rows, int64_t cols) {
  constexpr int64_t kUnit = 8;  // 16 bytes: what kernels and products load at once
  if (rows <= 0 || cols <= 0 || cols % kUnit != 0) {
    return InvalidArgument("a matrix of ", rows, " x ", cols,
                           " on a GPU: its columns must be a multiple of ", kUnit);
  }
  size_t bytes = 0;
  if (__builtin_mul_overflow(static_cast<size_t>(rows), static_cast<size_t>(cols) * 2, &bytes)) {
    return ResourceExhausted("a matrix of ", rows, " x ", cols, " overflows 64 bits");
  }
  KVERN_ASSIGN_OR_RETURN(DeviceMemory memory, arena.Allocate(bytes));
  return std::unique_ptr<Matrix>(new CudaMatrix(context, rows, cols, std::move(memory)));
}

absl::Status CudaMatrix::SetRows(int64_t first_row, int64_t count, FileDtype dtype,
                                 std::span<const std::byte> source) {
  KVERN_CHECK(first_row >= 0 && count >= 0 && first_row + count <= rows_)
      << "rows " << first_row << " + " << count << " of " << rows_;
  const size_t element_bytes = dtype == FileDtype::kF32 ? 4 : 2;
  if (dtype != FileDtype::kF32 && dtype != FileDtype::kF16 && dtype != FileDtype::kBf16) {
    return InvalidArgument("rows of ", std::string(Info(dtype).name),
                           " elements cannot be stored as bf16");
  }
  const auto elements = static_cast<size_t>(count * cols_);
  KVERN_CHECK_EQ(source.size(), elements * element_bytes);
  std::vector<uint16_t> values(elements);
  if (dtype == FileDtype::kF32) {
    ConvertAll<float>(source, values.data(), Bf16FromF32);
  } else if (dtype == FileDtype::kF16) {
    ConvertAll<uint16_t>(source, values.data(),
                         [](uint16_t half) { return Bf16FromF32(F32FromF16(half)); });
  } else {
    std::memcpy(values.data(), source.data(), source.size());
  }
  context_.Enter();  // this is one of many loading threads
  auto* target = static_cast<uint16_t*>(memory_.data()) + first_row * cols_;
  KVERN_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(target, values.data(), elements * sizeof(uint16_t),
                                 cudaMemcpyHostToDevice, context_.stream()),
                 "copying weights"));
  // A GPU that reads pageable memory by itself (HMM, ATS) need not stage it: `values` stays until
  // the copy has been made.
  return CudaStatus(cudaStreamSynchronize(context_.stream()), "copying weights");
}

}  // namespace kvern::inline KVERN_GPU_BUILD
