// A weight matrix in device memory: bfloat16 [rows, cols], row-major.
#pragma once

#include "worker/device/cuda/staged_copies.h"
#include "worker/device/device.h"

namespace kvern::inline KVERN_GPU_BUILD {

class CudaMatrix final : public Matrix {
 public:
  // InvalidArgument unless rows and cols are positive and cols is a multiple of 8.
  static absl::StatusOr<std::unique_ptr<Matrix>> Create(StagedCopies& copies, DeviceArena& arena,
                                                        int64_t rows, int64_t cols);

  int64_t rows() const override { return rows_; }
  int64_t cols() const override { return cols_; }
  WeightFormat format() const override { return WeightFormat::kBf16; }
  size_t bytes() const override { return memory_.bytes(); }
  // Values are rounded to nearest even into the memory that they are copied from. The copy may
  // still be under way on return; what is computed from then on sees it.
  absl::Status SetRows(int64_t first_row, int64_t count, FileDtype dtype,
                       std::span<const std::byte> source) override;

  void* data() const { return memory_.data(); }
  // `bias` [rows] rounded to bf16, behind the matrix: done by `stream`, once.
  absl::StatusOr<const void*> RoundedBias(const float* bias, cudaStream_t stream) const;

 private:
  CudaMatrix(StagedCopies& copies, int64_t rows, int64_t cols, DeviceMemory memory)
      : copies_(copies), rows_(rows), cols_(cols), memory_(std::move(memory)) {}

  StagedCopies& copies_;
  const int64_t rows_;
  const int64_t cols_;
  DeviceMemory memory_;                     // the matrix and, for its bias, one value per row
  mutable const float* rounded_ = nullptr;  // whose values lie behind the matrix
};

}  // namespace kvern::inline KVERN_GPU_BUILD
