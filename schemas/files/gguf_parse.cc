// GgufFile::Parse: the walk over the head of the file and the checks of the tensor table.
#include <algorithm>
#include <numeric>

#include "schemas/files/gguf.h"
#include "schemas/files/gguf_types.h"
#include "schemas/files/limits.h"
#include "schemas/files/sequential_reader.h"

namespace kvern {
namespace {

constexpr uint64_t kMaxKeyBytes = 65535;  // The specification's limit.
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 20;

}  // namespace

class GgufParser {
 public:
  explicit GgufParser(std::shared_ptr<const ByteSource> source)
      : reader_(*source, 0, kMaxGgufHeadBytes) {
    file_.source_ = std::move(source);
  }

  absl::StatusOr<GgufFile> Parse() {
    KVERN_RETURN_IF_ERROR(ReadHead());
    KVERN_RETURN_IF_ERROR(ReadMetadata());
    KVERN_RETURN_IF_ERROR(ReadTensorTable());
    KVERN_RETURN_IF_ERROR(PlaceTensors());
    KVERN_RETURN_IF_ERROR(CheckTensorNames());
    KVERN_RETURN_IF_ERROR(CheckOverlap());
    return std::move(file_);
  }

 private:
  absl::Status ReadHead();
  absl::Status ReadMetadata();
  absl::Status ReadValue(GgufFile::Value* value);
  absl::Status ReadArray(GgufFile::Value* value);
  absl::StatusOr<GgufType> ReadType();
  absl::Status ReadTensorTable();
  absl::Status ReadTensor(GgufTensor* tensor);
  absl::Status SizeTensor(GgufTensor* tensor);
  absl::Status PlaceTensors();
  absl::Status CheckTensorNames() const;
  absl::Status CheckOverlap() const;
  absl::Status TensorError(const GgufTensor& tensor, const std::string& problem) const {
    return InvalidArgument(file_.source_->name(), ": tensor ", Quoted(tensor.name), " ", problem);
  }

  SequentialReader reader_;
  GgufFile file_;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
};

absl::Status GgufParser::ReadHead() {
  reader_.set_context("magic");
  char magic[4];
  if (file_.source_->size() < sizeof(magic)) {
    return reader_.Error(absl::StrCat("the file has ", file_.source_->size(),
                                      " bytes, a GGUF file begins with 'GGUF'"));
  }
  for (char& letter : magic) KVERN_RETURN_IF_ERROR(reader_.Read(&letter));
  std::string_view found(magic, sizeof(magic));
  if (found != "GGUF") {
    return reader_.Error(absl::StrCat("found ", Quoted(found), ", a GGUF file begins with 'GGUF'"));
  }
  reader_.set_context("version");
  KVERN_RETURN_IF_ERROR(reader_.Read(&file_.version_));
  if (__builtin_bswap32(file_.version_) == 2 || __builtin_bswap32(file_.version_) == 3) {
    return reader_.Error("the file is big-endian, only little-endian files are read");
  }
  if (file_.version_ != 2 && file_.version_ != 3) {
    return reader_.Error(absl::StrCat("found ", file_.version_, ", versions 2 and 3 are read"));
  }
  reader_.set_context("tensor count");
  KVERN_RETURN_IF_ERROR(reader_.Read(&tensor_count_));
  if (tensor_count_ > kMaxTensors) {
    return reader_.Error(absl::StrCat(tensor_count_, " tensors, the limit is ", kMaxTensors));
  }
  reader_.set_context("metadata key count");
  KVERN_RETURN_IF_ERROR(reader_.Read(&key_count_));
  if (key_count_ > kMaxGgufKeys) {
    return reader_.Error(absl::StrCat(key_count_, " keys, the limit is ", kMaxGgufKeys));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadMetadata() {
  for (uint64_t i = 0; i < key_count_; ++i) {
    GgufFile::Value value{};
    reader_.set_context(absl::StrCat("name of metadata key ", i));
    KVERN_RETURN_IF_ERROR(reader_.ReadString(kMaxKeyBytes, &value.key));
    if (value.key.empty()) return reader_.Error("the name is empty");
    reader_.set_context(absl::StrCat("metadata key ", Quoted(value.key)));
    KVERN_RETURN_IF_ERROR(ReadValue(&value));
    file_.values_.push_back(std::move(value));
  }
  auto by_key = [](const auto& a, const auto& b) { return a.key < b.key; };
  std::sort(file_.values_.begin(), file_.values_.end(), by_key);
  for (size_t i = 1; i < file_.values_.size(); ++i) {
    if (file_.values_[i - 1].key == file_.values_[i].key) {
      return file_.BadValue(file_.values_[i].key, "appears twice");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufType> GgufParser::ReadType() {
  uint32_t number = 0;
  KVERN_RETURN_IF_ERROR(reader_.Read(&number));
  if (number >= kGgufTypeCount) {
    return reader_.Error(absl::StrCat("unknown value type ", number));
  }
  return static_cast<GgufType>(number);
}

absl::Status GgufParser::ReadValue(GgufFile::Value* value) {
  KVERN_ASSIGN_OR_RETURN(value->type, ReadType());
  if (value->type == GgufType::kArray) return ReadArray(value);
  value->offset = reader_.offset();
  if (value->type != GgufType::kString) return reader_.Skip(GgufTypeBytes(value->type));
  uint64_t length = 0;
  KVERN_RETURN_IF_ERROR(reader_.Read(&length));
  return reader_.Skip(length);
}

absl::Status GgufParser::ReadArray(GgufFile::Value* value) {
  KVERN_ASSIGN_OR_RETURN(value->element_type, ReadType());
  KVERN_RETURN_IF_ERROR(reader_.Read(&value->count));
  value->offset = reader_.offset();
  if (value->element_type == GgufType::kArray) return reader_.Error("arrays of arrays are refused");
  if (value->element_type != GgufType::kString) {
    return reader_.Skip(value->count, GgufTypeBytes(value->element_type));
  }
  for (uint64_t i = 0; i < value->count; ++i) {
    uint64_t length = 0;
    KVERN_RETURN_IF_ERROR(reader_.Read(&length));
    KVERN_RETURN_IF_ERROR(reader_.Skip(length));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensorTable() {
  for (uint64_t i = 0; i < tensor_count_; ++i) {
    GgufTensor tensor{};
    reader_.set_context(absl::StrCat("name of tensor ", i));
    KVERN_RETURN_IF_ERROR(reader_.ReadString(kMaxTensorNameBytes, &tensor.name));
    if (tensor.name.empty()) return reader_.Error("the name is empty");
    reader_.set_context(absl::StrCat("tensor ", Quoted(tensor.name)));
    KVERN_RETURN_IF_ERROR(ReadTensor(&tensor));
    file_.tensors_.push_back(std::move(tensor));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ReadTensor(GgufTensor* tensor) {
  uint32_t dims = 0;
  KVERN_RETURN_IF_ERROR(reader_.Read(&dims));
  if (dims == 0 || dims > kMaxDims) {
    return reader_.Error(absl::StrCat(dims, " dimensions, 1 to ", kMaxDims, " are allowed"));
  }
  tensor->shape.resize(dims);
  for (uint32_t i = 0; i < dims; ++i) {
    uint64_t& extent = tensor->shape[dims - 1 - i];
    KVERN_RETURN_IF_ERROR(reader_.Read(&extent));
    if (extent == 0) return reader_.Error(absl::StrCat("dimension ", i, " is 0"));
  }
  uint32_t number = 0;
  KVERN_RETURN_IF_ERROR(reader_.Read(&number));
  tensor->type = FindGgmlType(number);
  if (tensor->type == nullptr) return reader_.Error(absl::StrCat("unknown type ", number));
  KVERN_RETURN_IF_ERROR(reader_.Read(&tensor->offset));
  return SizeTensor(tensor);
}

absl::Status GgufParser::SizeTensor(GgufTensor* tensor) {
  const GgmlType& type = *tensor->type;
  uint64_t row = tensor->shape.back();
  if (row % type.block_elements != 0) {
    return reader_.Error(absl::StrCat("rows of ", row, " elements are not whole ", type.name,
                                      " blocks of ", type.block_elements));
  }
  uint64_t bytes = 0;
  bool overflow = __builtin_mul_overflow(row / type.block_elements, type.block_bytes, &bytes);
  for (size_t i = 0; i + 1 < tensor->shape.size(); ++i) {
    overflow |= __builtin_mul_overflow(bytes, tensor->shape[i], &bytes);
  }
  if (overflow) return reader_.Error("its size overflows 64 bits");
  tensor->bytes = bytes;
  return absl::OkStatus();
}

// Turns offsets into the data section into offsets into the file.
absl::Status GgufParser::PlaceTensors() {
  uint64_t alignment = kDefaultAlignment;
  if (file_.Has("general.alignment")) {
    KVERN_ASSIGN_OR_RETURN(alignment, file_.Uint("general.alignment", 1, kMaxAlignment));
    if (!std::has_single_bit(alignment)) {
      return file_.BadValue("general.alignment",
                            absl::StrCat("is ", alignment, ", which is not a power of two"));
    }
  }
  uint64_t size = file_.source_->size();
  uint64_t data = (reader_.offset() + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : file_.tensors_) {
    if (tensor.offset % alignment != 0) {
      return TensorError(tensor, absl::StrCat("has offset ", tensor.offset,
                                              ", not a multiple of the alignment ", alignment));
    }
    uint64_t start = 0;
    uint64_t end = 0;
    if (__builtin_add_overflow(data, tensor.offset, &start) ||
        __builtin_add_overflow(start, tensor.bytes, &end) || end > size) {
      return TensorError(tensor,
                         absl::StrCat("of ", tensor.bytes, " bytes at offset ", tensor.offset,
                                      " of the data section (which begins at ", data,
                                      ") lies beyond the end of the file (", size, " bytes)"));
    }
    tensor.offset = start;
  }
  return absl::OkStatus();
}

absl::Status GgufParser::CheckTensorNames() const {
  std::vector<std::string_view> names;
  names.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return InvalidArgument(file_.source_->name(), ": tensor ", Quoted(*twice), " appears twice");
}

absl::Status GgufParser::CheckOverlap() const {
  std::vector<const GgufTensor*> order;
  order.reserve(file_.tensors_.size());
  for (const GgufTensor& tensor : file_.tensors_) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const GgufTensor* a, const GgufTensor* b) {
    return a->offset != b->offset ? a->offset < b->offset : a->name < b->name;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const GgufTensor& before = *order[i - 1];
    if (before.offset + before.bytes > order[i]->offset) {
      return TensorError(*order[i], absl::StrCat("at byte ", order[i]->offset, " overlaps tensor ",
                                                 Quoted(before.name), " at bytes ", before.offset,
                                                 " to ", before.offset + before.bytes));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<GgufFile> GgufFile::Parse(std::shared_ptr<const ByteSource> source) {
  return GgufParser(std::move(source)).Parse();
}

}  // namespace kvern
