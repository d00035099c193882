#include "schemas/files/sequential_reader.h"

#include <algorithm>

namespace kvern {

SequentialReader::SequentialReader(const ByteSource& source, uint64_t offset, uint64_t limit)
    : source_(source), offset_(offset), limit_(std::min(limit, source.size())) {}

absl::Status SequentialReader::Error(const std::string& problem) const {
  return InvalidArgument(source_.name(), ": ", context_, ": ", problem);
}

absl::Status SequentialReader::EndsInside(uint64_t bytes) const {
  std::string limit_text =
      limit_ < source_.size() ? absl::StrCat(" (the limit for this section is ", limit_, ")") : "";
  return Error(absl::StrCat("needs ", bytes, " bytes at offset ", offset_, ", but the file has ",
                            source_.size(), " bytes", limit_text));
}

absl::Status SequentialReader::Need(uint64_t bytes) {
  if (offset_ >= window_start_ && offset_ - window_start_ + bytes <= window_.size()) {
    return absl::OkStatus();
  }
  if (offset_ > limit_ || bytes > limit_ - offset_) return EndsInside(bytes);
  window_.resize(std::min(kWindowBytes, limit_ - offset_));
  window_start_ = offset_;
  return source_.ReadAt(offset_, window_);
}

absl::Status SequentialReader::Skip(uint64_t count, uint64_t element_bytes) {
  uint64_t bytes = 0;
  if (__builtin_mul_overflow(count, element_bytes, &bytes)) {
    return Error(absl::StrCat(count, " elements of ", element_bytes, " bytes overflow 64 bits"));
  }
  if (offset_ > limit_ || bytes > limit_ - offset_) return EndsInside(bytes);
  offset_ += bytes;
  return absl::OkStatus();
}

absl::Status SequentialReader::ReadString(uint64_t max_bytes, std::string* text) {
  uint64_t length = 0;
  KVERN_RETURN_IF_ERROR(Read(&length));
  if (length > limit_ - offset_) return EndsInside(length);
  if (length > max_bytes) {
    return Error(absl::StrCat("string of ", length, " bytes, the limit is ", max_bytes));
  }
  text->resize(length);
  if (length <= kWindowBytes) {
    KVERN_RETURN_IF_ERROR(Need(length));
    if (length > 0) std::memcpy(text->data(), Window(), length);
  } else {
    KVERN_RETURN_IF_ERROR(source_.ReadAt(offset_, std::as_writable_bytes(std::span(*text))));
  }
  offset_ += length;
  return absl::OkStatus();
}

}  // namespace kvern
