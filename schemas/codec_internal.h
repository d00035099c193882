// What the codec's files share. Nothing outside schemas/codec*.cc includes this.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "flatbuffers/flatbuffers.h"
#include "schemas/codec.h"
#include "wire/common_generated.h"

namespace kvern::codec {

// The name of a field in error texts, put together only when there is an error: "top_p",
// "messages[3].content". Numbers of a list's entry come from `index`.
struct Field {
  Field(const char* name_in) : name(name_in) {}  // NOLINT(google-explicit-constructor)
  Field(const char* list_in, size_t index_in, const char* name_in = "")
      : list(list_in), index(index_in), name(name_in) {}
  std::string ToString() const;

  std::string_view list;
  size_t index = 0;
  std::string_view name;
};

// The second pass over a verified message: copies fields into owned values and keeps the first
// thing that is wrong. After a failure every copy is empty, so that a refused message costs nothing
// more.
//
// A FlatBuffer may point at the same bytes from many places. All copies together may hold no more
// than twice the message and 256 KiB (for what writers share on purpose: role names), so that a
// small message cannot ask for large memory.
class Checks {
 public:
  // `keep` may be null: then everything is copied. Else it outlives the checks.
  Checks(Bytes message, const KeepInput* keep)
      : message_(message), keep_(keep), budget_(2 * message.size() + (256u << 10)) {}

  bool ok() const { return failure_ == DecodeFailure::kNone; }
  DecodeFailure failure() const { return failure_; }
  std::string TakeError() { return std::move(error_); }

  // "FIELD VALUE, allowed: ALLOWED".
  template <typename Value>
  void OutOfRange(const Field& field, const Value& value, std::string_view allowed) {
    if (ok()) Refuse(DecodeFailure::kOutOfRange, field, absl::StrCat(value), allowed);
  }
  // The message lacks a part that no writer leaves out.
  void Missing(const Field& field);
  // A list lies where no writer puts it.
  void Misaligned(const Field& field);

  // Well-formed UTF-8 of at most `max_bytes`; an absent string is empty.
  std::string Text(const Field& field, const flatbuffers::String* text, size_t max_bytes);

  // Value in [min, max].
  template <typename T>
  T Within(const Field& field, T value, T min, T max) {
    if (value < min || value > max) OutOfRange(field, value, absl::StrCat(min, " to ", max));
    return value;
  }
  // Value in [min, max], so neither NaN nor infinite.
  float Real(const Field& field, float value, float min, float max);
  // A finite number >= 0.
  double Measure(const Field& field, double value);

  // An enumeration of the schema as ours; numbers are the same.
  template <typename To, typename From>
  To Enum(const Field& field, From value, From last) {
    if (value > last) {
      OutOfRange(field, static_cast<uint32_t>(value),
                 absl::StrCat("0 to ", static_cast<uint32_t>(last)));
    }
    return static_cast<To>(value);
  }

  // False, after noting it, if there are more than `max` entries.
  bool Count(const Field& field, size_t count, size_t max);

  // Copies numbers; an absent list is empty.
  template <typename T>
  std::vector<T> List(const Field& field, const flatbuffers::Vector<T>* list, size_t max) {
    if (list == nullptr || !Count(field, list->size(), max)) return {};
    if (!Spend(field, list->size() * sizeof(T))) return {};
    static_assert(FLATBUFFERS_LITTLEENDIAN);
    if (reinterpret_cast<uintptr_t>(list->Data()) % alignof(T) == 0) {
      const auto* first = reinterpret_cast<const T*>(list->Data());
      return std::vector<T>(first, first + list->size());  // not zeroed first: lists are long
    }
    std::vector<T> copy(list->size());
    if (!copy.empty()) std::memcpy(copy.data(), list->Data(), copy.size() * sizeof(T));
    return copy;
  }

  // Token ids, left where they are (see DecodeClientMessageInPlace) or copied; an absent list is
  // empty.
  TokenIds Ids(const Field& field, const flatbuffers::Vector<uint32_t>* list, size_t max);

  // False, after noting it, if a list of structs has more than `max` entries or lies where its
  // entries are not aligned: the verifier of FlatBuffers 2.0.8 checks the alignment of the list's
  // length alone.
  template <typename T>
  bool Structs(const Field& field, const flatbuffers::Vector<const T*>& list, size_t max) {
    if (ok() && reinterpret_cast<uintptr_t>(list.Data()) % alignof(T) != 0) Misaligned(field);
    return Count(field, list.size(), max);
  }

  // False, after noting it, if the copies would hold more than the budget.
  bool Spend(const Field& field, size_t bytes);

 private:
  void Refuse(DecodeFailure failure, const Field& field, std::string_view value,
              std::string_view allowed);
  bool MayStay(std::span<const uint32_t> ids) const;

  const Bytes message_;
  const KeepInput* const keep_;
  std::shared_ptr<const void> kept_;  // the message, until it is read to its end
  size_t budget_;
  DecodeFailure failure_ = DecodeFailure::kNone;
  std::string error_;
};

// The offset of the first byte that is not well-formed UTF-8 (Unicode 15.0, table 3-7); npos: none.
size_t FirstIllFormedUtf8(std::string_view text);

// ---- Envelopes

// The input at an 8-byte boundary: where it lies, if it is aligned, else in a copy.
class AlignedInput {
 public:
  explicit AlignedInput(Bytes bytes);
  const uint8_t* data() const { return data_; }

 private:
  std::unique_ptr<uint64_t[]> copy_;
  const uint8_t* data_;
};

// Steps one to three of decoding: size, structure, version. Returns the root, or null with
// `failure` and `error` set. `input` owns what the root points at.
template <typename Root>
const Root* OpenEnvelope(Bytes bytes, size_t max_bytes, uint32_t max_tables, const char* identifier,
                         std::optional<AlignedInput>& input, DecodeFailure* failure,
                         std::string* error) {
  // Smaller than any message: root offset, identifier, a table.
  constexpr size_t kMinBytes = 16;
  if (bytes.size() > max_bytes) {
    *failure = DecodeFailure::kTooLarge;
    *error = absl::StrCat("message of ", bytes.size(), " bytes, allowed: ", max_bytes);
    return nullptr;
  }
  input.emplace(bytes);
  flatbuffers::Verifier::Options options;
  options.max_depth = 8;
  options.max_tables = max_tables;
  flatbuffers::Verifier verifier(input->data(), bytes.size(), options);
  if (bytes.size() < kMinBytes || !verifier.VerifyBuffer<Root>(identifier)) {
    *failure = DecodeFailure::kMalformed;
    *error = absl::StrCat("not a ", identifier, " message of ", bytes.size(), " bytes");
    return nullptr;
  }
  const Root* root = flatbuffers::GetRoot<Root>(input->data());
  if (root->protocol_version() != kProtocolVersion) {
    *failure = DecodeFailure::kWrongVersion;
    *error = absl::StrCat("protocol version ", root->protocol_version(),
                          ", allowed: ", kProtocolVersion);
    return nullptr;
  }
  return root;
}

// Decodes one envelope with `read(root, checks, message)`, which fills the message and returns
// false for a union kind that it does not know. `keep`: see Checks.
template <typename Root, typename Message, typename Read>
Decoded<Message> DecodeEnvelope(Bytes bytes, size_t max_bytes, uint32_t max_tables,
                                const char* identifier, Read read,
                                const KeepInput* keep = nullptr) {
  Decoded<Message> result;
  std::optional<AlignedInput> input;
  const Root* root = OpenEnvelope<Root>(bytes, max_bytes, max_tables, identifier, input,
                                        &result.failure, &result.error);
  if (root == nullptr) return result;
  result.sender = root->incarnation();
  if (root->body() == nullptr && static_cast<int>(root->body_type()) != 0) {
    result.failure = DecodeFailure::kMalformed;
    result.error = "a message without a body";
    return result;
  }
  Checks checks(bytes, keep);
  if (!read(*root, checks, result)) {
    result.failure = DecodeFailure::kUnknownKind;
    result.error = absl::StrCat("message kind ", static_cast<int>(root->body_type()), ", unknown");
  } else if (!checks.ok()) {
    result.failure = checks.failure();
    result.error = checks.TakeError();
  }
  return result;
}

// A FlatBuffer in the making. The ids of long prompts are left out of its buffer until the message
// is copied out of it, so that this is the only pass over them.
class MessageBuilder : public flatbuffers::FlatBufferBuilder {
 public:
  using FlatBufferBuilder::FlatBufferBuilder;

  // The ids stay as they are until the message is copied out.
  flatbuffers::Offset<flatbuffers::Vector<uint32_t>> PutIds(std::span<const uint32_t> ids);

  // The finished message.
  std::string CopyOut() const;

  void Clear() {
    FlatBufferBuilder::Clear();
    gaps_.clear();
  }

 private:
  struct Gap {
    size_t from_end;  // of the message, to its first byte
    std::span<const uint32_t> ids;
  };
  std::vector<Gap> gaps_;  // in the order of writing: the last of the message first
};

// A builder of this thread, empty. One user at a time; valid until the next call. What is larger
// than `expected_bytes` is copied each time that it grows.
MessageBuilder& ScratchBuilder(size_t expected_bytes = 0);

// Ends the buffer and copies it out.
template <typename Root>
std::string FinishMessage(MessageBuilder& builder, flatbuffers::Offset<Root> root,
                          const char* identifier) {
  builder.Finish(root, identifier);
  return builder.CopyOut();
}

// ---- Parts that several messages have

inline wire::RequestId ToWire(const RequestId& id) { return {id.high, id.low}; }
inline RequestId FromWire(const wire::RequestId* id) {
  return id == nullptr ? RequestId{} : RequestId{id->high(), id->low()};
}

// An empty string is left out of the message.
inline flatbuffers::Offset<flatbuffers::String> PutText(flatbuffers::FlatBufferBuilder& builder,
                                                        const std::string& text) {
  return text.empty() ? 0 : builder.CreateString(text);
}
template <typename T>
flatbuffers::Offset<flatbuffers::Vector<T>> PutList(flatbuffers::FlatBufferBuilder& builder,
                                                    const std::vector<T>& list) {
  if (list.empty()) return 0;
  return builder.CreateVector(list.data(), list.size());
}

// A list of structs, each made by `convert` from an entry of `list`.
// (CreateUninitializedVectorOfStructs of FlatBuffers 2.0.8 takes the size of a struct for its
// alignment.)
template <typename To, typename From, typename Convert>
flatbuffers::Offset<flatbuffers::Vector<const To*>> PutStructs(
    flatbuffers::FlatBufferBuilder& builder, const std::vector<From>& list, Convert convert) {
  if (list.empty()) return 0;
  auto fill = [&convert](size_t i, To* to, const std::vector<From>* from) {
    *to = convert((*from)[i]);
  };
  return builder.CreateVectorOfStructs<To>(list.size(), fill, &list);
}

template <typename T>
std::optional<T> ToStd(const flatbuffers::Optional<T>& value) {
  return value.has_value() ? std::optional<T>(*value) : std::nullopt;
}

flatbuffers::Offset<wire::SamplingParams> PutSampling(flatbuffers::FlatBufferBuilder& builder,
                                                      const SamplingParams& sampling);
flatbuffers::Offset<wire::SamplingParams> PutSampling(flatbuffers::FlatBufferBuilder& builder,
                                                      const ResolvedSampling& sampling);
// Refuses a seed or max_tokens: a request has its own.
SamplingParams ReadSampling(const wire::SamplingParams* sampling, Checks& checks);
ResolvedSampling ReadResolvedSampling(const wire::SamplingParams* sampling, Checks& checks);

struct LogprobOffsets {
  flatbuffers::Offset<flatbuffers::Vector<const wire::TokenLogprob*>> tokens;
  flatbuffers::Offset<flatbuffers::Vector<const wire::TokenValue*>> top;
};
LogprobOffsets PutLogprobs(flatbuffers::FlatBufferBuilder& builder,
                           const std::vector<TokenLogprob>& logprobs);
// Refuses another number of entries than `num_tokens` or none.
std::vector<TokenLogprob> ReadLogprobs(const flatbuffers::Vector<const wire::TokenLogprob*>* tokens,
                                       const flatbuffers::Vector<const wire::TokenValue*>* top,
                                       size_t num_tokens, Checks& checks);

}  // namespace kvern::codec
