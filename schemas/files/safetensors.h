// The head of a safetensors file: a JSON table of tensors over one buffer of bytes.
// Source: the format's README and its reference reader, whose stricter rules are kept: the tensors
// tile the buffer exactly, without holes, overlaps or bytes left over; zero-sized tensors may share
// an offset.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "schemas/files/byte_source.h"
#include "schemas/files/dtype.h"

namespace kvern {

// The reference allows 100 MB; the largest real heads are under 1 MB per file.
inline constexpr uint64_t kMaxSafetensorsHeadBytes = 16 << 20;

struct SafetensorsDtype {
  const char* name;
  uint64_t bytes;
  std::optional<FileDtype> dtype;  // Absent: known, so its size can be checked, but not read.
};

struct SafetensorsTensor {
  std::string name;  // Unique, no control bytes.
  const SafetensorsDtype* type = nullptr;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // bytes from the start of the file
  uint64_t bytes = 0;   // equals shape x type
};

// All tensors of the file, in the order of their bytes. Memory is bounded by the limits of this
// folder, not by what the file claims.
absl::StatusOr<std::vector<SafetensorsTensor>> ParseSafetensors(const ByteSource& source);

}  // namespace kvern
