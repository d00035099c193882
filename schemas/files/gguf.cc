// GgufFile's typed getters.
#include "schemas/files/gguf.h"

#include <algorithm>
#include <cmath>

#include "schemas/files/gguf_types.h"
#include "schemas/files/sequential_reader.h"

namespace kvern {
namespace {

// One integer of any width, sign-extended to 64 bits; `negative` tells the two halves apart.
struct AnyInt {
  uint64_t bits = 0;
  bool negative = false;

  std::string Text() const {
    return negative ? absl::StrCat(static_cast<int64_t>(bits)) : absl::StrCat(bits);
  }
};

template <typename T>
absl::Status ReadAs(SequentialReader& reader, AnyInt* out) {
  T value = 0;
  KVERN_RETURN_IF_ERROR(reader.Read(&value));
  if constexpr (std::is_signed_v<T>) {
    out->negative = value < 0;
    out->bits = static_cast<uint64_t>(static_cast<int64_t>(value));
  } else {
    out->negative = false;
    out->bits = value;
  }
  return absl::OkStatus();
}

bool IsInteger(GgufType type) {
  return type != GgufType::kFloat32 && type != GgufType::kFloat64 && type != GgufType::kBool &&
         type != GgufType::kString && type != GgufType::kArray;
}

// REQUIRES: IsInteger(type).
absl::Status ReadInt(SequentialReader& reader, GgufType type, AnyInt* out) {
  switch (type) {
    case GgufType::kUint8:
      return ReadAs<uint8_t>(reader, out);
    case GgufType::kInt8:
      return ReadAs<int8_t>(reader, out);
    case GgufType::kUint16:
      return ReadAs<uint16_t>(reader, out);
    case GgufType::kInt16:
      return ReadAs<int16_t>(reader, out);
    case GgufType::kUint32:
      return ReadAs<uint32_t>(reader, out);
    case GgufType::kInt32:
      return ReadAs<int32_t>(reader, out);
    case GgufType::kUint64:
      return ReadAs<uint64_t>(reader, out);
    default:
      return ReadAs<int64_t>(reader, out);
  }
}

}  // namespace

bool LooksLikeGguf(const ByteSource& source) {
  char magic[4];
  return source.ReadAt(0, std::as_writable_bytes(std::span(magic))).ok() &&
         std::string_view(magic, 4) == "GGUF";
}

const GgufFile::Value* GgufFile::Find(std::string_view key) const {
  auto it = std::lower_bound(values_.begin(), values_.end(), key,
                             [](const Value& value, std::string_view k) { return value.key < k; });
  return it != values_.end() && it->key == key ? &*it : nullptr;
}

absl::Status GgufFile::BadValue(std::string_view key, const std::string& problem) const {
  return InvalidArgument(source_->name(), ": metadata key ", Quoted(key), " ", problem);
}

absl::StatusOr<const GgufFile::Value*> GgufFile::Need(std::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) return BadValue(key, "is missing");
  return value;
}

absl::StatusOr<const GgufFile::Value*> GgufFile::NeedArray(std::string_view key) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, Need(key));
  if (value->type != GgufType::kArray) {
    return BadValue(key, absl::StrCat("is of type ", GgufTypeName(value->type), ", not an array"));
  }
  return value;
}

absl::StatusOr<uint64_t> GgufFile::Uint(std::string_view key, uint64_t min, uint64_t max) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, Need(key));
  if (!IsInteger(value->type)) {
    return BadValue(key,
                    absl::StrCat("is of type ", GgufTypeName(value->type), ", not an integer"));
  }
  SequentialReader reader(*source_, value->offset, source_->size());
  reader.set_context(absl::StrCat("metadata key ", Quoted(key)));
  AnyInt number;
  KVERN_RETURN_IF_ERROR(ReadInt(reader, value->type, &number));
  if (number.negative || number.bits < min || number.bits > max) {
    return BadValue(key, absl::StrCat("is ", number.Text(), ", must be ", min, " to ", max));
  }
  return number.bits;
}

absl::StatusOr<double> GgufFile::Float(std::string_view key) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, Need(key));
  SequentialReader reader(*source_, value->offset, source_->size());
  reader.set_context(absl::StrCat("metadata key ", Quoted(key)));
  double number = 0;
  if (value->type == GgufType::kFloat32) {
    float narrow = 0;
    KVERN_RETURN_IF_ERROR(reader.Read(&narrow));
    number = static_cast<double>(narrow);
  } else if (value->type == GgufType::kFloat64) {
    KVERN_RETURN_IF_ERROR(reader.Read(&number));
  } else {
    return BadValue(key, absl::StrCat("is of type ", GgufTypeName(value->type), ", not a float"));
  }
  if (!std::isfinite(number)) return BadValue(key, absl::StrCat("is ", number, ", not finite"));
  return number;
}

absl::StatusOr<bool> GgufFile::Bool(std::string_view key) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, Need(key));
  if (value->type != GgufType::kBool) {
    return BadValue(key, absl::StrCat("is of type ", GgufTypeName(value->type), ", not bool"));
  }
  uint8_t byte = 0;
  KVERN_RETURN_IF_ERROR(
      source_->ReadAt(value->offset, std::as_writable_bytes(std::span(&byte, 1))));
  if (byte > 1) return BadValue(key, absl::StrCat("is the bool ", int{byte}, ", must be 0 or 1"));
  return byte == 1;
}

absl::StatusOr<std::string> GgufFile::String(std::string_view key, uint64_t max_bytes) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, Need(key));
  if (value->type != GgufType::kString) {
    return BadValue(key, absl::StrCat("is of type ", GgufTypeName(value->type), ", not string"));
  }
  SequentialReader reader(*source_, value->offset, source_->size());
  reader.set_context(absl::StrCat("metadata key ", Quoted(key)));
  std::string text;
  KVERN_RETURN_IF_ERROR(reader.ReadString(max_bytes, &text));
  return text;
}

absl::StatusOr<uint64_t> GgufFile::ArrayCount(std::string_view key) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, NeedArray(key));
  return value->count;
}

absl::StatusOr<uint64_t> GgufFile::StringCount(std::string_view key) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, NeedArray(key));
  if (value->element_type != GgufType::kString) {
    return BadValue(key, absl::StrCat("is an array of ", GgufTypeName(value->element_type),
                                      ", not of strings"));
  }
  return value->count;
}

absl::Status GgufFile::ForEachString(
    std::string_view key, uint64_t max_bytes,
    const std::function<absl::Status(uint64_t, std::string&&)>& visit) const {
  KVERN_ASSIGN_OR_RETURN(uint64_t count, StringCount(key));
  SequentialReader reader(*source_, Find(key)->offset, source_->size());
  reader.set_context(absl::StrCat("metadata key ", Quoted(key)));
  for (uint64_t i = 0; i < count; ++i) {
    std::string text;
    KVERN_RETURN_IF_ERROR(reader.ReadString(max_bytes, &text));
    KVERN_RETURN_IF_ERROR(visit(i, std::move(text)));
  }
  return absl::OkStatus();
}

absl::Status GgufFile::ForEachInt(
    std::string_view key, const std::function<absl::Status(uint64_t, int64_t)>& visit) const {
  KVERN_ASSIGN_OR_RETURN(const Value* value, NeedArray(key));
  if (!IsInteger(value->element_type)) {
    return BadValue(key, absl::StrCat("is an array of ", GgufTypeName(value->element_type),
                                      ", not of integers"));
  }
  SequentialReader reader(*source_, value->offset, source_->size());
  reader.set_context(absl::StrCat("metadata key ", Quoted(key)));
  for (uint64_t i = 0; i < value->count; ++i) {
    AnyInt number;
    KVERN_RETURN_IF_ERROR(ReadInt(reader, value->element_type, &number));
    if (!number.negative && number.bits > static_cast<uint64_t>(INT64_MAX)) {
      return BadValue(key, absl::StrCat("holds ", number.Text(), ", which is beyond int64"));
    }
    KVERN_RETURN_IF_ERROR(visit(i, static_cast<int64_t>(number.bits)));
  }
  return absl::OkStatus();
}

}  // namespace kvern
