#include "worker/device/cuda/cuda_matrix.h"

#include <bit>
#include <cmath>
#include <cstring>

#include "cluster/base/check.h"
#include "kernels/cuda/launch.h"

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

// Converts elements of `source`, from element `first` on, until `out` is full.
template <typename T, typename Convert>
void ConvertSome(std::span<const std::byte> source, size_t first, std::span<std::byte> out,
                 Convert convert) {
  const std::byte* in = source.data() + first * sizeof(T);
  auto* values = reinterpret_cast<uint16_t*>(out.data());
  for (size_t i = 0; i < out.size() / sizeof(uint16_t); ++i) {
    T value;
    std::memcpy(&value, in + i * sizeof(T), sizeof(T));
    values[i] = convert(value);
  }
}

void RoundSome(FileDtype dtype, std::span<const std::byte> source, size_t first,
               std::span<std::byte> out) {
  if (dtype == FileDtype::kF32) {
    ConvertSome<float>(source, first, out, Bf16FromF32);
  } else if (dtype == FileDtype::kF16) {
    ConvertSome<uint16_t>(source, first, out,
                          [](uint16_t half) { return Bf16FromF32(F32FromF16(half)); });
  } else {
    std::memcpy(out.data(), source.data() + first * sizeof(uint16_t), out.size());
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Matrix>> CudaMatrix::Create(StagedCopies& copies, DeviceArena& arena,
                                                           int64_t rows, int64_t cols) {
  constexpr int64_t kUnit = 8;  // 16 bytes: what kernels and products load at once
  if (rows <= 0 || cols <= 0 || cols % kUnit != 0) {
    return InvalidArgument("a matrix of ", rows, " x ", cols,
                           " on a GPU: its columns must be a multiple of ", kUnit);
  }
  size_t bytes = 0;
  // With a bias behind it: 16 bytes are its alignment.
  if (__builtin_mul_overflow(static_cast<size_t>(rows), static_cast<size_t>(cols + 1) * 2,
                             &bytes)) {
    return ResourceExhausted("a matrix of ", rows, " x ", cols, " overflows 64 bits");
  }
  const size_t bias = static_cast<size_t>(rows) * 2;
  KVERN_ASSIGN_OR_RETURN(DeviceMemory memory,
                         arena.LayOut(bytes, DeviceArena::Content::kAnything, bias));
  return std::unique_ptr<Matrix>(new CudaMatrix(copies, rows, cols, std::move(memory)));
}

absl::StatusOr<const void*> CudaMatrix::RoundedBias(const float* bias, cudaStream_t stream) const {
  void* values = static_cast<uint16_t*>(memory_.data()) + rows_ * cols_;
  if (rounded_ == bias) return values;
  AllowMemory(values, static_cast<size_t>(rows_) * 2);
  const gpu::ToBf16Args args = {bias, static_cast<gpu::Bf16*>(values), rows_};
  KVERN_RETURN_IF_ERROR(CudaStatus(gpu::LaunchToBf16(args, stream), "to_bf16"));
  rounded_ = bias;
  return values;
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
  auto* target = static_cast<uint16_t*>(memory_.data()) + first_row * cols_;
  return copies_.Load(target, elements * sizeof(uint16_t),
                      [dtype, source](size_t offset, std::span<std::byte> out) {
                        RoundSome(dtype, source, offset / sizeof(uint16_t), out);
                      });
}

}  // namespace kvern::inline KVERN_GPU_BUILD
