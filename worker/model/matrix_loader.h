// Fills weight matrices from parts of a checkpoint's tensors, on all threads of the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cluster/base/status.h"
#include "schemas/files/checkpoint.h"
#include "worker/device/device.h"
#include "worker/model/weights.h"

namespace kvern {

// Rows [first_row, first_row + rows) and columns [first_col, first_col + cols) of `tensor`, for
// rows [target_row, ...) of `target`. For q and k projections: whole heads.
struct MatrixPiece {
  Matrix* target = nullptr;
  int64_t target_row = 0;
  const TensorInfo* tensor = nullptr;
  uint64_t first_row = 0;
  uint64_t rows = 0;
  uint64_t first_col = 0;
  uint64_t cols = 0;
};

// The format in memory of a matrix that is made of columns [first_col, first_col + cols) of
// `tensors`: what `choice` says, with kAuto the narrowest that loses nothing for any of them. kInt8
// and kInt4 need whole groups of 32 columns; a cut elsewhere is kept as float32. An
// `at_least_8_bits` matrix (embedding, output) takes int8 where int4 was chosen and the file has
// more.
WeightFormat ChooseFormat(WeightChoice choice, std::span<const TensorInfo* const> tensors,
                          uint64_t first_col, uint64_t cols, bool at_least_8_bits);

class MatrixLoader {
 public:
  explicit MatrixLoader(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {}

  void Add(const MatrixPiece& piece);

  // Reads all pieces. The first error in the order of Add, naming tensor, type and shape.
  absl::Status Run(Device& device);

 private:
  struct Scratch;
  absl::Status LoadRows(const MatrixPiece& piece) const;
  absl::Status ReadRows(const MatrixPiece& piece, Scratch& scratch) const;
  void EncodeRow(const MatrixPiece& piece, uint64_t row, FileDtype encoding,
                 Scratch& scratch) const;

  const Checkpoint& checkpoint_;
  std::vector<MatrixPiece> jobs_;  // pieces cut into bounded runs of rows
};

}  // namespace kvern
