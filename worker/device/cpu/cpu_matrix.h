// A weight matrix in the CPU kernels' layout.
#pragma once

#include <memory>

#include "kernels/cpu/packed.h"
#include "worker/device/cpu/memory.h"
#include "worker/device/device.h"

namespace kvern {

class CpuMatrix final : public Matrix {
 public:
  // Of a row's kQuantGroup columns; a panel may be padded beyond that.
  static size_t GroupBytes(WeightFormat format);

  // Memory from `arena`. ResourceExhausted without it; InvalidArgument when a quantised matrix's
  // columns are not whole groups or a size is not positive.
  static absl::StatusOr<std::unique_ptr<Matrix>> Create(MemoryArena& arena, WeightFormat format,
                                                        int64_t rows, int64_t cols);

  int64_t rows() const override { return packed_.n; }
  int64_t cols() const override { return packed_.k; }
  WeightFormat format() const override { return format_; }
  size_t bytes() const override { return memory_.bytes(); }
  absl::Status SetRows(int64_t first_row, int64_t count, FileDtype dtype,
                       std::span<const std::byte> source) override;

  const cpu::PackedMatrix& packed() const { return packed_; }

 private:
  CpuMatrix(WeightFormat format, cpu::PackedMatrix packed, AlignedMemory memory);

  const WeightFormat format_;
  AlignedMemory memory_;
  cpu::PackedMatrix packed_;
};

}  // namespace kvern
