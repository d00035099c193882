// Byte-level BPE: text to token ids, and the bytes of each id.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/status.h"
#include "router/text/bpe.h"
#include "router/text/pre_tokenizer.h"
#include "router/text/token_trie.h"
#include "schemas/files/tokenizer_data.h"

namespace kvern {

// One stretch of a prompt: either the exact text of one control token, or text in which no control
// token is parsed.
struct PromptPiece {
  std::string text;
  bool control = false;

  bool operator==(const PromptPiece&) const = default;
};

struct EncodeOptions {
  bool parse_special = false;  // Control tokens in the text become their ids.
  bool add_special = false;    // Put BOS in front if the model asks for it.
  size_t max_ids = SIZE_MAX;   // Text with more is refused, as soon as that is known.
};

// What an encoding cost; the tests bound it per byte, since a clock would decide nothing.
struct EncodeStats {
  uint64_t steps = 0;  // Characters looked at, trie steps, pair look-ups and heap operations.
};

// Immutable, so any number of threads may use one.
class Tokenizer {
 public:
  // Longer inputs and tokens are refused: the limits of a request are far below the first, those of
  // real vocabularies below the second.
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;
  static constexpr size_t kMaxTokenBytes = 4096;

  // Checks everything that Encode relies on. unimplemented: a model other than "gpt2", an unknown
  // pre-tokenizer, add_space_prefix. invalid_argument: lists of differing lengths, an empty,
  // too long, ill-formed or repeated token, a merge that is no "left right" of two tokens whose
  // joint spelling is a token but not a control token, a repeated merge, a special id out of range.
  static absl::StatusOr<Tokenizer> Create(TokenizerData data);

  // The ids of `text` (UTF-8). Bytes for which the vocabulary has no token are dropped, as the
  // reference tokenizers do. Linear in the text but for the logarithm of the longest part, with no
  // recursion. invalid_argument: ill-formed UTF-8 (with the byte offset), more than kMaxTextBytes.
  // out_of_range: more than max_ids. Of a text that is far longer only so much is merged.
  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text, const EncodeOptions& options,
                                               EncodeStats* stats = nullptr) const;

  // The ids of a rendered chat: control pieces become their token, and all text between two control
  // pieces is one text. failed_precondition: the vocabulary lacks a control piece's token.
  // out_of_range: more than max_ids.
  absl::StatusOr<std::vector<uint32_t>> EncodePieces(std::span<const PromptPiece> pieces,
                                                     bool add_special,
                                                     size_t max_ids = SIZE_MAX) const;

  size_t vocab_size() const { return kinds_.size(); }

  // The exact bytes that an id stands for; empty for an id that the vocabulary lacks (a model's
  // output matrix may have more rows than there are tokens).
  std::string_view TokenBytes(uint32_t id) const;

  // True for control tokens, which skip_special leaves out of the text.
  bool IsControl(uint32_t id) const;

  // OK, or invalid_argument naming the first id that is not below vocab_size().
  absl::Status CheckIds(std::span<const uint32_t> ids) const;

  // The id of a control token by its text.
  std::optional<uint32_t> ControlId(std::string_view text) const;

  std::optional<uint32_t> bos_id() const { return bos_id_; }
  std::optional<uint32_t> eos_id() const { return eos_id_; }
  const std::string& chat_template() const { return chat_template_; }

 private:
  using IdOfSpelling = absl::flat_hash_map<std::string_view, uint32_t>;

  explicit Tokenizer(PreTokenizer pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {}

  absl::Status AddTokens(const TokenizerData& data, IdOfSpelling* ids);
  absl::Status AddMerges(const TokenizerData& data, const IdOfSpelling& ids);
  // False: there are more than `max_ids`, of which `ids` has a part.
  bool AppendPlain(std::string_view text, size_t max_ids, BpeMerger* merger,
                   std::vector<uint32_t>* ids, uint64_t* steps) const;

  static constexpr uint32_t kNoToken = 0xFFFFFFFF;

  PreTokenizer pre_tokenizer_;
  BpeMerges merges_;
  TokenTrie special_;  // Control and user-defined tokens by their text.
  std::array<uint32_t, 256> byte_ids_{};
  std::vector<TokenKind> kinds_;      // [vocab_size]
  std::string bytes_;                 // Of all tokens, one after the other.
  std::vector<uint32_t> byte_begin_;  // [vocab_size + 1] offsets into bytes_
  size_t longest_token_ = 1;          // No token is merged of more bytes.
  std::optional<uint32_t> bos_id_;
  std::optional<uint32_t> eos_id_;
  bool add_bos_ = false;
  std::string chat_template_;
};

}  // namespace kvern
