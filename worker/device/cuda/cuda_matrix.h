// A weight matrix in device memory: bfloat16 [rows, cols], row-major.
#pragma once

#include "worker/device/cuda/cuda_memory.h"
#include "worker/device/device.h"

namespace kvern::inline KVERN_GPU_BUILD {

class CudaMatrix final : public Matrix {
 public:
  // InvalidArgument unless rows and cols are positive and cols is a multiple of 8.
  static absl::StatusOr<std::unique_ptr<Matrix>> Create(CudaContext& context, DeviceArena& arena,
                                                        int64_t rows, int64_t cols);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return WeightFormat::kBf16; }
  size_t bytes() const override { return memory_.bytes(); }
  // Values are rounded to nearest even on the host and copied from there.
  absl::Status SetRows(int64_t first_row, int64_t count, FileDtype dtype,
                       std::span<const std::byte> source) override;

  void* data() const { return memory_.data(); }

 private:
  CudaMatrix(CudaContext& context, int64_t rows, int64_t cols, DeviceMemory memory)
      : context_(context), rows_(rows), cols_(cols), memory_(std::move(memory)) {}

  CudaContext& context_;
  const int64_t rows_;
  const int64_t cols_;
  DeviceMemory memory_;
};

}  // namespace kvern::inline KVERN_GPU_BUILD
