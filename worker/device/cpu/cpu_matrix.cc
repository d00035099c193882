#include "worker/device/cpu/cpu_matrix.h"

#include <algorithm>
#include <utility>

#include "cluster/base/check.h"

namespace kvern {
namespace {

cpu::Packing PackingOf(WeightFormat format) {
  switch (format) {
    case WeightFormat::kF32:
      return cpu::Packing::kF32;
    case WeightFormat::kBf16:
      return cpu::Packing::kBf16;
    case WeightFormat::kInt8:
      return cpu::Packing::kInt8;
    case WeightFormat::kInt4:
      return cpu::Packing::kInt4;
  }
  KVERN_CHECK(false) << "weight format " << static_cast<int>(format);
  return cpu::Packing::kF32;
}

constexpr const char* kFormatNames[] = {"f32", "bf16", "int8", "int4"};

cpu::Source SourceOf(FileDtype dtype) {
  static_assert(static_cast<int>(FileDtype::kF32) == static_cast<int>(cpu::Source::kF32));
  static_assert(static_cast<int>(FileDtype::kF16) == static_cast<int>(cpu::Source::kF16));
  static_assert(static_cast<int>(FileDtype::kBf16) == static_cast<int>(cpu::Source::kBf16));
  static_assert(static_cast<int>(FileDtype::kQ8_0) == static_cast<int>(cpu::Source::kQ8_0));
  static_assert(static_cast<int>(FileDtype::kQ4_0) == static_cast<int>(cpu::Source::kQ4_0));
  static_assert(static_cast<int>(FileDtype::kQ4_1) == static_cast<int>(cpu::Source::kQ4_1));
  return static_cast<cpu::Source>(dtype);
}

}  // namespace

CpuMatrix::CpuMatrix(WeightFormat format, cpu::PackedMatrix packed, AlignedMemory memory)
    : format_(format), memory_(std::move(memory)), packed_(packed) {
  packed_.data = memory_.data();
}

size_t CpuMatrix::GroupBytes(WeightFormat format) {
  constexpr int64_t kGroups = 2;  // A panel of one group of kInt8 is padded.
  return cpu::PanelBytes(PackingOf(format), kGroups * kQuantGroup) /
         static_cast<size_t>(kGroups * cpu::kPanelRows);
}

absl::StatusOr<std::unique_ptr<Matrix>> CpuMatrix::Create(MemoryArena& arena, WeightFormat format,
                                                          int64_t rows, int64_t cols) {
  const char* name = kFormatNames[static_cast<size_t>(format)];
  const bool quantised = format == WeightFormat::kInt8 || format == WeightFormat::kInt4;
  if (rows <= 0 || cols <= 0 || (quantised && cols % kQuantGroup != 0)) {
    return InvalidArgument("a ", name, " matrix of ", rows, " x ", cols,
                           ": sizes must be positive, quantised columns a multiple of ",
                           kQuantGroup);
  }
  cpu::PackedMatrix packed;
  packed.packing = PackingOf(format);
  packed.n = rows;
  packed.k = cols;
  size_t bytes = 0;
  if (cols > (int64_t{1} << 40)) return ResourceExhausted("a matrix of ", cols, " columns");
  packed.panel_bytes = cpu::PanelBytes(packed.packing, cols);
  if (__builtin_mul_overflow(static_cast<size_t>(cpu::NumPanels(rows)), packed.panel_bytes,
                             &bytes)) {
    return ResourceExhausted("a ", name, " matrix of ", rows, " x ", cols, " overflows 64 bits");
  }
  KVERN_ASSIGN_OR_RETURN(AlignedMemory memory, arena.Allocate(bytes));
  return std::unique_ptr<Matrix>(new CpuMatrix(format, packed, std::move(memory)));
}

absl::Status CpuMatrix::SetRows(int64_t first_row, int64_t count, FileDtype dtype,
                                std::span<const std::byte> source) {
  const FileDtypeInfo info = Info(dtype);
  const auto block = static_cast<int64_t>(info.block_elements);
  if (!cpu::CanPack(packed_.packing, SourceOf(dtype)) || packed_.k % block != 0) {
    return InvalidArgument("rows of ", packed_.k, " ", std::string(info.name),
                           " elements cannot be stored as ",
                           kFormatNames[static_cast<size_t>(format_)]);
  }
  KVERN_CHECK(first_row >= 0 && count >= 0 && first_row + count <= packed_.n)
      << "rows " << first_row << " + " << count << " of " << packed_.n;
  const size_t row_bytes = static_cast<size_t>(packed_.k / block) * info.block_bytes;
  KVERN_CHECK_EQ(source.size(), row_bytes * static_cast<size_t>(count));
  const std::byte* rows = source.data();
  for (int64_t row = first_row; row < first_row + count;) {
    const int64_t panel_end = (row / cpu::kPanelRows + 1) * cpu::kPanelRows;
    const int64_t here = std::min(panel_end, first_row + count) - row;
    if (!cpu::PackRows(packed_, row, here, SourceOf(dtype), rows)) {
      return InvalidArgument("rows ", row, " to ", row + here - 1, ": a ", std::string(info.name),
                             " scale is too large: 8 times it overflows float16");
    }
    rows += row_bytes * static_cast<size_t>(here);
    row += here;
  }
  return absl::OkStatus();
}

}  // namespace kvern
