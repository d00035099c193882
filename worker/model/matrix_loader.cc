#include "worker/model/matrix_loader.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "cluster/base/check.h"
#include "schemas/files/dequantize.h"
#include "worker/model/quantize.h"

namespace kvern {
namespace {

// A job reads about this much: large enough for the system call, small enough for the cache.
constexpr uint64_t kJobBytes = 256 << 10;
// Devices interleave 16 rows; jobs of whole such groups do not write the same lines.
constexpr uint64_t kRowGroup = 16;
// A slice of a row is read alone only if it leaves whole pages of the file unread.
constexpr uint64_t kSliceReadBytes = 8 << 10;

bool IsFloat(FileDtype dtype) {
  return dtype == FileDtype::kF32 || dtype == FileDtype::kF16 || dtype == FileDtype::kBf16;
}

WeightFormat OwnFormat(FileDtype dtype) {
  switch (dtype) {
    case FileDtype::kF32:
    case FileDtype::kF16:
      return WeightFormat::kF32;
    case FileDtype::kBf16:
      return WeightFormat::kBf16;
    case FileDtype::kQ8_0:
      return WeightFormat::kInt8;
    case FileDtype::kQ4_0:
    case FileDtype::kQ4_1:
      return WeightFormat::kInt4;
  }
  return WeightFormat::kF32;
}

// The pairs that Matrix::SetRow takes.
bool IsDirect(FileDtype dtype, WeightFormat format) {
  if (format == WeightFormat::kF32) return true;
  if (format == WeightFormat::kBf16) return IsFloat(dtype);
  return OwnFormat(dtype) == format;
}

absl::Status NameTensor(const absl::Status& status, const TensorInfo& tensor) {
  if (status.ok()) return status;
  return absl::Status(
      status.code(),
      absl::StrCat("tensor ", tensor.name, " (", ToAbsl(Info(tensor.dtype).name), ", [",
                   absl::StrJoin(tensor.shape, ", "), "]): ", status.message()));
}

// What float32 values are turned into for a matrix of this format.
FileDtype EncodingFor(WeightFormat format) {
  if (format == WeightFormat::kInt8) return FileDtype::kQ8_0;
  if (format == WeightFormat::kInt4) return FileDtype::kQ4_1;
  return FileDtype::kF32;
}

}  // namespace

// One job's buffers.
struct MatrixLoader::Scratch {
  std::vector<std::byte> file_rows;
  uint64_t bytes_per_row = 0;  // of file_rows
  bool slices = false;         // file_rows holds only the piece's columns
  std::vector<float> values;   // a row of file_rows
  std::vector<std::byte> quantized;
  std::vector<std::byte> encoded;  // the piece's rows and columns, as SetRows takes them
};

WeightFormat ChooseFormat(WeightChoice choice, std::span<const TensorInfo* const> tensors,
                          uint64_t first_col, uint64_t cols, bool at_least_8_bits) {
  WeightFormat format = OwnFormat(tensors[0]->dtype);
  bool all_int4 = true;
  for (const TensorInfo* tensor : tensors) {
    if (OwnFormat(tensor->dtype) != format) format = WeightFormat::kF32;
    all_int4 = all_int4 && OwnFormat(tensor->dtype) == WeightFormat::kInt4;
  }
  if (choice == WeightChoice::kF32) format = WeightFormat::kF32;
  if (choice == WeightChoice::kBf16) format = WeightFormat::kBf16;
  if (choice == WeightChoice::kInt8) format = WeightFormat::kInt8;
  if (choice == WeightChoice::kInt4) {
    format = at_least_8_bits && !all_int4 ? WeightFormat::kInt8 : WeightFormat::kInt4;
  }
  bool grouped = format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
  bool whole_groups = first_col % kQuantGroup == 0 && cols % kQuantGroup == 0;
  return grouped && !whole_groups ? WeightFormat::kF32 : format;
}

void MatrixLoader::Add(const MatrixPiece& piece) {
  uint64_t group = piece.tensor->interleaved_rows ? checkpoint_.config().head_dim : kRowGroup;
  uint64_t groups = std::max<uint64_t>(1, kJobBytes / (piece.tensor->row_bytes() * group));
  uint64_t step = groups * group;
  for (uint64_t done = 0; done < piece.rows; done += step) {
    MatrixPiece job = piece;
    job.target_row += static_cast<int64_t>(done);
    job.first_row += done;
    job.rows = std::min(step, piece.rows - done);
    jobs_.push_back(job);
  }
}

absl::Status MatrixLoader::Run(Device& device) {
  std::vector<absl::Status> results(jobs_.size());
  device.ParallelFor(static_cast<int64_t>(jobs_.size()), [&](int64_t i) {
    auto job = static_cast<size_t>(i);
    results[job] = LoadRows(jobs_[job]);
  });
  for (size_t job = 0; job < jobs_.size(); ++job) {
    KVERN_RETURN_IF_ERROR(NameTensor(results[job], *jobs_[job].tensor));
  }
  jobs_.clear();
  return absl::OkStatus();
}

absl::Status MatrixLoader::LoadRows(const MatrixPiece& piece) const {
  Scratch scratch;
  KVERN_RETURN_IF_ERROR(ReadRows(piece, scratch));
  const TensorInfo& tensor = *piece.tensor;
  WeightFormat format = piece.target->format();
  auto rows = static_cast<int64_t>(piece.rows);
  FileDtypeInfo info = Info(tensor.dtype);
  bool whole_blocks =
      piece.first_col % info.block_elements == 0 && piece.cols % info.block_elements == 0;
  bool direct = whole_blocks && IsDirect(tensor.dtype, format);
  bool as_read = scratch.slices || piece.cols == tensor.row_elements();
  if (direct && as_read && !tensor.interleaved_rows) {
    return piece.target->SetRows(piece.target_row, rows, tensor.dtype, scratch.file_rows);
  }
  FileDtype encoding = direct ? tensor.dtype : EncodingFor(format);
  for (uint64_t row = 0; row < piece.rows; ++row) EncodeRow(piece, row, encoding, scratch);
  return piece.target->SetRows(piece.target_row, rows, encoding, scratch.encoded);
}

absl::Status MatrixLoader::ReadRows(const MatrixPiece& piece, Scratch& scratch) const {
  const TensorInfo& tensor = *piece.tensor;
  FileDtypeInfo info = Info(tensor.dtype);
  bool whole_blocks =
      piece.first_col % info.block_elements == 0 && piece.cols % info.block_elements == 0;
  uint64_t slice_offset = piece.first_col / info.block_elements * info.block_bytes;
  uint64_t slice_bytes = piece.cols / info.block_elements * info.block_bytes;
  scratch.slices = whole_blocks && piece.cols < tensor.row_elements() &&
                   tensor.row_bytes() - slice_bytes >= kSliceReadBytes;
  scratch.bytes_per_row = scratch.slices ? slice_bytes : tensor.row_bytes();
  scratch.file_rows.resize(piece.rows * scratch.bytes_per_row);
  std::span<std::byte> out(scratch.file_rows);
  if (!scratch.slices) {
    return checkpoint_.ReadBytes(tensor, piece.first_row * tensor.row_bytes(), out);
  }
  for (uint64_t row = 0; row < piece.rows; ++row) {
    uint64_t offset = (piece.first_row + row) * tensor.row_bytes() + slice_offset;
    KVERN_RETURN_IF_ERROR(
        checkpoint_.ReadBytes(tensor, offset, out.subspan(row * slice_bytes, slice_bytes)));
  }
  return absl::OkStatus();
}

// Appends the piece's columns of row `row` to scratch.encoded. `encoding`: the tensor's own type,
// or what its float32 values are turned into.
void MatrixLoader::EncodeRow(const MatrixPiece& piece, uint64_t row, FileDtype encoding,
                             Scratch& scratch) const {
  const TensorInfo& tensor = *piece.tensor;
  FileDtypeInfo info = Info(tensor.dtype);
  // Interleaved rows move within their head, which the job holds as a whole.
  uint64_t file_row = checkpoint_.SourceRow(tensor, piece.first_row + row) - piece.first_row;
  KVERN_CHECK_LT(file_row, piece.rows);
  auto bytes = std::span<const std::byte>(scratch.file_rows)
                   .subspan(file_row * scratch.bytes_per_row, scratch.bytes_per_row);
  uint64_t first_col = scratch.slices ? 0 : piece.first_col;
  std::span<const std::byte> part;
  if (encoding == tensor.dtype) {
    part = bytes.subspan(first_col / info.block_elements * info.block_bytes,
                         piece.cols / info.block_elements * info.block_bytes);
  } else {
    scratch.values.resize(scratch.bytes_per_row / info.block_bytes * info.block_elements);
    DequantizeRow(tensor.dtype, bytes, scratch.values);
    auto values = std::span<const float>(scratch.values).subspan(first_col, piece.cols);
    part = std::as_bytes(values);
    if (encoding != FileDtype::kF32) {
      QuantizeRow(encoding, values, scratch.quantized);
      part = scratch.quantized;
    }
  }
  scratch.encoded.insert(scratch.encoded.end(), part.begin(), part.end());
}

}  // namespace kvern
