// The container format GGUF, versions 2 and 3, little-endian: typed metadata and a table of
// tensors. Source: ggml's gguf specification. Every number in the file is hostile until checked
// here.
//
// Invariants of a parsed file: keys and tensor names are unique; every tensor's shape, type and
// byte count agree, lie inside the file and overlap no other tensor. Metadata values stay in the
// file and are read when asked for, so memory does not grow with what the file claims.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "schemas/files/byte_source.h"
#include "schemas/files/dtype.h"

namespace kvern {

// Limits of this reader; each refusal names the limit. Real files: < 100 keys, head < 20 MB.
inline constexpr uint64_t kMaxGgufKeys = 1 << 16;
inline constexpr uint64_t kMaxGgufHeadBytes = 256ull << 20;

enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

// The element type of a tensor as ggml numbers them.
struct GgmlType {
  uint32_t number;
  const char* name;
  uint32_t block_elements;
  uint32_t block_bytes;
  std::optional<FileDtype> dtype;  // Absent: known, so its size can be checked, but not read.
};

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> shape;  // Rows first: the reverse of the order in the file.
  const GgmlType* type;
  uint64_t offset;  // bytes from the start of the file
  uint64_t bytes;
};

// Immutable after Parse; all methods are thread-safe.
class GgufFile {
 public:
  static absl::StatusOr<GgufFile> Parse(std::shared_ptr<const ByteSource> source);

  uint32_t version() const { return version_; }
  const ByteSource& source() const { return *source_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }  // in file order

  bool Has(std::string_view key) const { return Find(key) != nullptr; }

  // Typed getters: an absent key, another type or a value out of range is an error naming the key,
  // the value and the range. Uint takes any integer type. Float takes both widths and refuses NaN
  // and infinity.
  absl::StatusOr<uint64_t> Uint(std::string_view key, uint64_t min, uint64_t max) const;
  absl::StatusOr<double> Float(std::string_view key) const;
  absl::StatusOr<bool> Bool(std::string_view key) const;
  absl::StatusOr<std::string> String(std::string_view key, uint64_t max_bytes) const;

  // The length of an array of strings / of integers of any width.
  absl::StatusOr<uint64_t> StringCount(std::string_view key) const;
  absl::StatusOr<uint64_t> ArrayCount(std::string_view key) const;
  // Visits an array of strings in order; stops at the first error of `visit`.
  absl::Status ForEachString(
      std::string_view key, uint64_t max_bytes,
      const std::function<absl::Status(uint64_t, std::string&&)>& visit) const;
  // The same for an array of integers that fit int64.
  absl::Status ForEachInt(std::string_view key,
                          const std::function<absl::Status(uint64_t, int64_t)>& visit) const;

 private:
  struct Value {
    std::string key;
    GgufType type;
    GgufType element_type;  // of an array
    uint64_t count;         // elements of an array
    uint64_t offset;        // of the value in the file
  };
  friend class GgufParser;

  GgufFile() = default;
  const Value* Find(std::string_view key) const;
  absl::StatusOr<const Value*> Need(std::string_view key) const;
  absl::StatusOr<const Value*> NeedArray(std::string_view key) const;
  absl::Status BadValue(std::string_view key, const std::string& problem) const;

  std::shared_ptr<const ByteSource> source_;
  uint32_t version_ = 0;
  uint64_t head_bytes_ = 0;
  std::vector<Value> values_;  // sorted by key
  std::vector<GgufTensor> tensors_;
};

// True if the file begins like a GGUF file of any version and byte order.
bool LooksLikeGguf(const ByteSource& source);

}  // namespace kvern
