#include "schemas/codec.h"

#include <cmath>

#include "cluster/base/check.h"
#include "schemas/codec_internal.h"

namespace kvern {

std::string_view DecodeFailureName(DecodeFailure failure) {
  switch (failure) {
    case DecodeFailure::kNone:
      return "none";
    case DecodeFailure::kTooLarge:
      return "too_large";
    case DecodeFailure::kMalformed:
      return "malformed";
    case DecodeFailure::kWrongVersion:
      return "wrong_version";
    case DecodeFailure::kUnknownKind:
      return "unknown_kind";
    case DecodeFailure::kOutOfRange:
      return "out_of_range";
  }
  return "none";
}

namespace codec {
namespace {

// Length of the well-formed character that begins at text[0] (a byte above 0x7F); 0: ill-formed.
size_t MultiByteLength(const unsigned char* text, size_t size) {
  unsigned char lead = text[0];
  size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  if (lead < 0xC2 || lead > 0xF4 || size < length) return 0;
  // The second byte's range excludes overlong forms, surrogates and what is above U+10FFFF.
  unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (text[1] < low || text[1] > high) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (text[i] < 0x80 || text[i] > 0xBF) return 0;
  }
  return length;
}

}  // namespace

size_t FirstIllFormedUtf8(std::string_view text) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word;
    if (text.size() - i >= sizeof(word)) {
      std::memcpy(&word, bytes + i, sizeof(word));
      if ((word & 0x8080808080808080ull) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    if (bytes[i] < 0x80) {
      ++i;
      continue;
    }
    size_t length = MultiByteLength(bytes + i, text.size() - i);
    if (length == 0) return i;
    i += length;
  }
  return std::string_view::npos;
}

std::string Field::ToString() const {
  if (list.empty()) return std::string(name);
  std::string text = absl::StrCat(ToAbsl(list), "[", index, "]");
  if (!name.empty()) absl::StrAppend(&text, ".", ToAbsl(name));
  return text;
}

void Checks::Refuse(DecodeFailure failure, const Field& field, std::string_view value,
                    std::string_view allowed) {
  failure_ = failure;
  error_ = absl::StrCat(field.ToString(), " ", ToAbsl(value), ", allowed: ", ToAbsl(allowed));
}

void Checks::Missing(const Field& field) {
  if (!ok()) return;
  failure_ = DecodeFailure::kMalformed;
  error_ = absl::StrCat(field.ToString(), " is missing");
}

void Checks::Misaligned(const Field& field) {
  if (!ok()) return;
  failure_ = DecodeFailure::kMalformed;
  error_ = absl::StrCat(field.ToString(), " is not aligned");
}

bool Checks::Count(const Field& field, size_t count, size_t max) {
  if (count > max) OutOfRange(field, absl::StrCat("with ", count, " entries"), absl::StrCat(max));
  return ok();
}

bool Checks::Spend(const Field& field, size_t bytes) {
  if (ok() && bytes > budget_) {
    failure_ = DecodeFailure::kMalformed;
    error_ = absl::StrCat(field.ToString(), " shares bytes with other fields");
  }
  if (ok()) budget_ -= bytes;
  return ok();
}

std::string Checks::Text(const Field& field, const flatbuffers::String* text, size_t max_bytes) {
  if (text == nullptr || !ok()) return {};
  if (text->size() > max_bytes) {
    OutOfRange(field, absl::StrCat("of ", text->size(), " bytes"), absl::StrCat(max_bytes));
    return {};
  }
  if (!Spend(field, text->size())) return {};
  std::string copy(text->c_str(), text->size());
  size_t ill_formed = FirstIllFormedUtf8(copy);
  if (ill_formed != std::string_view::npos) {
    OutOfRange(field, absl::StrCat("is ill-formed at byte ", ill_formed), "UTF-8");
    return {};
  }
  return copy;
}

float Checks::Real(const Field& field, float value, float min, float max) {
  // Written so that NaN is refused.
  if (!(value >= min && value <= max)) {
    OutOfRange(field, value, absl::StrCat(min, " to ", max));
  }
  return value;
}

double Checks::Measure(const Field& field, double value) {
  if (!(value >= 0 && std::isfinite(value))) OutOfRange(field, value, "a finite number >= 0");
  return value;
}

AlignedInput::AlignedInput(Bytes bytes) {
  data_ = reinterpret_cast<const uint8_t*>(bytes.data());
  if (reinterpret_cast<uintptr_t>(data_) % sizeof(uint64_t) == 0 && !bytes.empty()) return;
  copy_.reset(new uint64_t[bytes.size() / sizeof(uint64_t) + 1]);
  data_ = reinterpret_cast<const uint8_t*>(copy_.get());
  if (!bytes.empty()) std::memcpy(copy_.get(), bytes.data(), bytes.size());
}

bool Checks::MayStay(std::span<const uint32_t> ids) const {
  if (keep_ == nullptr || ids.size_bytes() < kMinBytesInPlace) return false;
  // What was moved to be aligned (AlignedInput) does not last.
  const auto* begin = reinterpret_cast<const std::byte*>(ids.data());
  if (begin < message_.data() || begin >= message_.data() + message_.size()) return false;
  size_t rest = message_.size() - ids.size_bytes();
  return rest <= ids.size_bytes() / 8;
}

TokenIds Checks::Ids(const Field& field, const flatbuffers::Vector<uint32_t>* list, size_t max) {
  if (list == nullptr || !Count(field, list->size(), max)) return {};
  if (!Spend(field, list->size() * sizeof(uint32_t))) return {};
  static_assert(FLATBUFFERS_LITTLEENDIAN);
  bool aligned = reinterpret_cast<uintptr_t>(list->Data()) % alignof(uint32_t) == 0;
  if (aligned) {
    std::span<const uint32_t> ids(reinterpret_cast<const uint32_t*>(list->Data()), list->size());
    if (MayStay(ids)) {
      if (kept_ == nullptr) kept_ = (*keep_)();
      return TokenIds(ids, kept_);
    }
  }
  auto copy = std::make_shared_for_overwrite<uint32_t[]>(list->size());
  if (list->size() > 0) std::memcpy(copy.get(), list->Data(), list->size() * sizeof(uint32_t));
  std::span<const uint32_t> ids(copy.get(), list->size());
  return TokenIds(ids, std::move(copy));
}

flatbuffers::Offset<flatbuffers::Vector<uint32_t>> MessageBuilder::PutIds(
    std::span<const uint32_t> ids) {
  constexpr size_t kMinBytesOfAGap = 1024;
  if (ids.size_bytes() < kMinBytesOfAGap) return CreateVector(ids.data(), ids.size());
  uint32_t* unwritten = nullptr;
  auto list = CreateUninitializedVector<uint32_t>(ids.size(), &unwritten);
  gaps_.push_back({GetSize() - sizeof(flatbuffers::uoffset_t), ids});  // behind the length
  return list;
}

std::string MessageBuilder::CopyOut() const {
  const char* from = reinterpret_cast<const char*>(GetBufferPointer());
  const char* const end = from + GetSize();
  std::string bytes;
  bytes.reserve(GetSize());
  for (auto gap = gaps_.rbegin(); gap != gaps_.rend(); ++gap) {
    bytes.append(from, end - gap->from_end);
    bytes.append(reinterpret_cast<const char*>(gap->ids.data()), gap->ids.size_bytes());
    from = end - gap->from_end + gap->ids.size_bytes();
  }
  return bytes.append(from, end);
}

MessageBuilder& ScratchBuilder(size_t expected_bytes) {
  // One huge message must not keep its memory for good.
  constexpr size_t kKeptBytes = 1u << 20;
  constexpr size_t kFirstBytes = 4096;
  thread_local MessageBuilder builder(kFirstBytes);
  thread_local size_t largest = 0;
  largest = std::max<size_t>(largest, builder.GetSize());
  if (largest > kKeptBytes || expected_bytes > kKeptBytes) {
    builder = MessageBuilder(std::max(expected_bytes, kFirstBytes));
    largest = 0;
  } else {
    builder.Clear();
  }
  return builder;
}

}  // namespace codec
}  // namespace kvern
