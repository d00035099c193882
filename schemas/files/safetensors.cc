#include "schemas/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_join.h"
#include "schemas/files/json.h"
#include "schemas/files/limits.h"

namespace kvern {
namespace {

constexpr uint64_t kPrefixBytes = 8;
constexpr size_t kMaxDims = 8;

constexpr SafetensorsDtype kDtypes[] = {
    {"F32", 4, FileDtype::kF32},
    {"F16", 2, FileDtype::kF16},
    {"BF16", 2, FileDtype::kBf16},
    {"F64", 8, {}},
    {"I64", 8, {}},
    {"U64", 8, {}},
    {"I32", 4, {}},
    {"U32", 4, {}},
    {"I16", 2, {}},
    {"U16", 2, {}},
    {"I8", 1, {}},
    {"U8", 1, {}},
    {"BOOL", 1, {}},
    {"F8_E5M2", 1, {}},
    {"F8_E4M3", 1, {}},
};

// Receives the parser's events and accepts the one shape a head may have:
//   { name: { "dtype": string, "shape": [n...], "data_offsets": [begin, end] }...,
//     "__metadata__": { key: string... } }
// Fills tensors with offsets relative to the buffer; `bytes` holds the end until it is placed.
class HeadReader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  HeadReader(std::string_view text, const std::string& where) : text_(text), where_(where) {}

  const absl::Status& status() const { return status_; }
  std::vector<SafetensorsTensor> TakeTensors() { return std::move(tensors_); }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return Unexpected(absl::StrCat(value)); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", text));
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (list_ == List::kNone) return Unexpected(absl::StrCat(value));
    std::vector<uint64_t>& list = list_ == List::kShape ? tensors_.back().shape : offsets_;
    size_t most = list_ == List::kShape ? kMaxDims : 2;
    if (list.size() == most) {
      return Fail(absl::StrCat("has more than ", most, " numbers in ", Quoted(field_)));
    }
    list.push_back(value);
    return true;
  }
  bool string(string_t& value) override;
  bool binary(binary_t&) override { return false; }  // Not part of JSON text.
  bool start_object(size_t) override;
  bool end_object() override;
  bool start_array(size_t) override;
  bool end_array() override {
    list_ = List::kNone;
    return true;
  }
  bool key(string_t& name) override;
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    status_ = JsonSyntaxError(text_, where_, position, name_);
    return false;
  }

 private:
  enum class List { kNone, kShape, kOffsets };

  bool Fail(const std::string& problem) {
    status_ = InvalidArgument(where_, ": tensor ", Quoted(name_), " ", problem);
    return false;
  }
  bool Unexpected(const std::string& what) {
    if (depth_ == 0) {
      status_ = InvalidArgument(where_, ": the header is not a JSON object");
      return false;
    }
    return Fail(absl::StrCat("has ", what, " where it may not",
                             depth_ > 1 ? absl::StrCat(" (in ", Quoted(field_), ")") : ""));
  }
  bool SetType(const std::string& name);

  std::string_view text_;
  const std::string& where_;
  std::vector<SafetensorsTensor> tensors_;
  absl::Status status_;

  int depth_ = 0;
  bool metadata_ = false;  // inside "__metadata__"
  bool metadata_seen_ = false;
  std::string name_;   // the tensor's
  std::string field_;  // the last key inside it
  bool shape_seen_ = false;
  bool offsets_seen_ = false;
  List list_ = List::kNone;
  std::vector<uint64_t> offsets_;
};

bool HeadReader::SetType(const std::string& name) {
  for (const SafetensorsDtype& dtype : kDtypes) {
    if (name == dtype.name) tensors_.back().type = &dtype;
  }
  return tensors_.back().type != nullptr || Fail(absl::StrCat("has unknown dtype ", Quoted(name)));
}

bool HeadReader::string(string_t& value) {
  if (depth_ == 2 && metadata_) return true;
  if (depth_ == 2 && field_ == "dtype" && list_ == List::kNone) return SetType(value);
  return Unexpected(absl::StrCat("the string ", Quoted(value)));
}

bool HeadReader::start_object(size_t) {
  if (depth_ > 1 || list_ != List::kNone) return Unexpected("an object");
  ++depth_;
  if (depth_ == 1 || metadata_) return true;
  if (tensors_.size() == kMaxTensors) {
    return Fail(absl::StrCat("is one too many, the limit is ", kMaxTensors));
  }
  tensors_.emplace_back();
  tensors_.back().name = name_;
  offsets_.clear();
  shape_seen_ = false;
  offsets_seen_ = false;
  return true;
}

bool HeadReader::end_object() {
  --depth_;
  if (depth_ != 1) return true;
  if (std::exchange(metadata_, false)) return true;
  if (tensors_.back().type == nullptr) return Fail("has no dtype");
  if (!shape_seen_) return Fail("has no shape");
  if (offsets_.size() != 2) {
    return Fail(absl::StrCat("has ", offsets_.size(), " data_offsets, must be 2"));
  }
  if (offsets_[0] > offsets_[1]) {
    return Fail(absl::StrCat("has data_offsets ", offsets_[0], ", ", offsets_[1],
                             ": the end is before the beginning"));
  }
  tensors_.back().offset = offsets_[0];
  tensors_.back().bytes = offsets_[1] - offsets_[0];
  return true;
}

bool HeadReader::start_array(size_t) {
  if (depth_ != 2 || metadata_ || list_ != List::kNone) return Unexpected("an array");
  if (field_ == "shape") {
    list_ = List::kShape;
    shape_seen_ = true;
  } else if (field_ == "data_offsets") {
    list_ = List::kOffsets;
    offsets_seen_ = true;
  } else {
    return Unexpected("an array");
  }
  return true;
}

bool HeadReader::key(string_t& name) {
  if (depth_ == 2) {
    field_ = name;
    if (metadata_) return true;
    bool repeats = (name == "dtype" && tensors_.back().type != nullptr) ||
                   (name == "shape" && shape_seen_) || (name == "data_offsets" && offsets_seen_);
    if (repeats) return Fail(absl::StrCat("has two fields ", Quoted(name)));
    bool known = name == "dtype" || name == "shape" || name == "data_offsets";
    return known || Fail(absl::StrCat("has an unknown field ", Quoted(name)));
  }
  name_ = name;
  metadata_ = name == "__metadata__";
  if (metadata_ && std::exchange(metadata_seen_, true)) return Fail("is there twice");
  if (name.empty() || name.size() > kMaxTensorNameBytes) {
    return Fail(
        absl::StrCat("has a name of ", name.size(), " bytes, must be 1 to ", kMaxTensorNameBytes));
  }
  bool control = std::any_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
  });
  return !control || Fail("has control bytes in its name");
}

absl::Status CheckSize(const SafetensorsTensor& tensor, const std::string& where) {
  uint64_t bytes = tensor.type->bytes;
  bool overflow = false;
  for (uint64_t extent : tensor.shape) overflow |= __builtin_mul_overflow(bytes, extent, &bytes);
  std::string shape = absl::StrJoin(tensor.shape, ", ");
  if (overflow) {
    return InvalidArgument(where, ": tensor ", Quoted(tensor.name), ": the size of shape [", shape,
                           "] overflows 64 bits");
  }
  if (bytes == tensor.bytes) return absl::OkStatus();
  return InvalidArgument(where, ": tensor ", Quoted(tensor.name), ": ", tensor.type->name,
                         " of shape [", shape, "] has ", bytes, " bytes, but its data_offsets ",
                         tensor.offset, ", ", tensor.offset + tensor.bytes, " span ", tensor.bytes);
}

// The tensors must tile the buffer of `data_bytes` bytes.
absl::Status CheckTiling(std::vector<SafetensorsTensor>& tensors, uint64_t data_bytes,
                         const std::string& where) {
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return a.offset != b.offset ? a.offset < b.offset : a.bytes < b.bytes;
  });
  uint64_t end = 0;
  const char* before = "the header";
  for (const SafetensorsTensor& tensor : tensors) {
    uint64_t tensor_end = tensor.offset + tensor.bytes;
    if (tensor_end > data_bytes) {
      return InvalidArgument(where, ": tensor ", Quoted(tensor.name), " with data_offsets ",
                             tensor.offset, ", ", tensor_end, " lies beyond the buffer of ",
                             data_bytes, " bytes");
    }
    if (tensor.offset != end) {
      return InvalidArgument(where, ": tensor ", Quoted(tensor.name), " with data_offsets ",
                             tensor.offset, ", ", tensor_end,
                             tensor.offset < end ? " overlaps " : " leaves a hole after ",
                             Quoted(before), ", which ends at ", end);
    }
    end = tensor_end;
    before = tensor.name.c_str();
  }
  if (end == data_bytes) return absl::OkStatus();
  return InvalidArgument(where, ": the tensors end at byte ", end, " of a buffer of ", data_bytes,
                         " bytes");
}

absl::Status CheckNames(const std::vector<SafetensorsTensor>& tensors, const std::string& where) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const SafetensorsTensor& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  return InvalidArgument(where, ": tensor ", Quoted(*twice), " is there twice");
}

absl::StatusOr<std::string> ReadHead(const ByteSource& source) {
  if (source.size() < kPrefixBytes) {
    return InvalidArgument(source.name(), ": a file of ", source.size(),
                           " bytes has no room for the header length");
  }
  uint64_t length = 0;
  KVERN_RETURN_IF_ERROR(source.ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
  if (length > source.size() - kPrefixBytes || length > kMaxSafetensorsHeadBytes) {
    return InvalidArgument(source.name(), ": header length ", length, ", but the file has ",
                           source.size(), " bytes and the limit is ", kMaxSafetensorsHeadBytes);
  }
  std::string head(length, '\0');
  KVERN_RETURN_IF_ERROR(source.ReadAt(kPrefixBytes, std::as_writable_bytes(std::span(head))));
  if (head.empty() || head[0] != '{') {
    return InvalidArgument(source.name(), ": the header (", length, " bytes) begins with ",
                           Quoted(head.substr(0, 4)), ", must be '{'");
  }
  return head;
}

}  // namespace

absl::StatusOr<std::vector<SafetensorsTensor>> ParseSafetensors(const ByteSource& source) {
  KVERN_ASSIGN_OR_RETURN(std::string head, ReadHead(source));
  JsonLimits limits;
  limits.max_bytes = kMaxSafetensorsHeadBytes;
  limits.max_depth = 3;
  limits.max_values = kMaxSafetensorsHeadBytes;  // Bounded by HeadReader, which builds no tree.
  limits.max_string_bytes = 1 << 20;             // Metadata hold whole configurations at times.
  KVERN_RETURN_IF_ERROR(CheckJsonLimits(head, source.name(), limits));
  HeadReader reader(head, source.name());
  if (!nlohmann::json::sax_parse(head.begin(), head.end(), &reader)) return reader.status();
  std::vector<SafetensorsTensor> tensors = reader.TakeTensors();
  KVERN_RETURN_IF_ERROR(CheckNames(tensors, source.name()));
  for (const SafetensorsTensor& tensor : tensors) {
    KVERN_RETURN_IF_ERROR(CheckSize(tensor, source.name()));
  }
  uint64_t data_start = kPrefixBytes + head.size();
  KVERN_RETURN_IF_ERROR(CheckTiling(tensors, source.size() - data_start, source.name()));
  for (SafetensorsTensor& tensor : tensors) tensor.offset += data_start;
  return tensors;
}

}  // namespace kvern
