#include "router/text/tokenizer.h"

#include <algorithm>

#include "cluster/base/check.h"
#include "router/text/byte_table.h"
#include "router/text/utf8.h"
#include "schemas/files/model_config.h"

namespace kvern {
namespace {

bool IsControlKind(TokenKind kind) {
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
}

// Tokens that are cut out of text as a whole, whatever surrounds them.
bool IsSpecialKind(TokenKind kind) {
  return IsControlKind(kind) || kind == TokenKind::kUserDefined;
}

absl::Status CheckSupported(const TokenizerData& data) {
  if (data.model != "gpt2") {
    return Unimplemented("tokenizer model '", data.model, "' is not known, known is: gpt2");
  }
  if (data.add_space_prefix) return Unimplemented("add_space_prefix true is not known to gpt2");
  if (data.tokens.empty() || data.tokens.size() > kMaxVocab) {
    return InvalidArgument("tokens: ", data.tokens.size(), " entries, allowed 1 to ", kMaxVocab);
  }
  if (data.kinds.size() != data.tokens.size()) {
    return InvalidArgument("token kinds: ", data.kinds.size(), " entries for ", data.tokens.size(),
                           " tokens");
  }
  for (const std::optional<uint32_t>& id : {data.bos_id, data.eos_id}) {
    if (id && *id >= data.tokens.size()) {
      return InvalidArgument("bos or eos id ", *id, ", allowed 0 to ", data.tokens.size() - 1);
    }
  }
  if (data.add_bos && !data.bos_id) return InvalidArgument("add_bos without a bos id");
  return absl::OkStatus();
}

absl::Status CheckToken(std::string_view token, size_t id) {
  if (token.empty() || token.size() > Tokenizer::kMaxTokenBytes) {
    return InvalidArgument("token ", id, ": ", token.size(), " bytes, allowed 1 to ",
                           Tokenizer::kMaxTokenBytes);
  }
  absl::Status utf8 = CheckUtf8(token);
  if (!utf8.ok()) return InvalidArgument("token ", id, ": ", utf8.message());
  return absl::OkStatus();
}

absl::Status TooMany(size_t max_ids) {
  return absl::OutOfRangeError(absl::StrCat("text: more than ", max_ids, " tokens"));
}

}  // namespace

absl::StatusOr<Tokenizer> Tokenizer::Create(TokenizerData data) {
  KVERN_RETURN_IF_ERROR(CheckSupported(data));
  KVERN_ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Create(data.pre_tokenizer));
  Tokenizer tokenizer(pre_tokenizer);
  IdOfSpelling ids;
  KVERN_RETURN_IF_ERROR(tokenizer.AddTokens(data, &ids));
  KVERN_RETURN_IF_ERROR(tokenizer.AddMerges(data, ids));
  for (size_t byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    auto it = ids.find(SpellingOfBytes({&c, 1}));
    const bool found = it != ids.end() && !IsControlKind(tokenizer.kinds_[it->second]);
    tokenizer.byte_ids_[byte] = found ? it->second : kNoToken;
  }
  tokenizer.bos_id_ = data.bos_id;
  tokenizer.eos_id_ = data.eos_id;
  tokenizer.add_bos_ = data.add_bos;
  tokenizer.chat_template_ = std::move(data.chat_template);
  return tokenizer;
}

absl::Status Tokenizer::AddTokens(const TokenizerData& data, IdOfSpelling* ids) {
  kinds_ = data.kinds;
  ids->reserve(data.tokens.size());
  byte_begin_.reserve(data.tokens.size() + 1);
  byte_begin_.push_back(0);
  for (uint32_t id = 0; id < data.tokens.size(); ++id) {
    const std::string& token = data.tokens[id];
    KVERN_RETURN_IF_ERROR(CheckToken(token, id));
    auto [it, inserted] = ids->emplace(token, id);
    if (!inserted) return InvalidArgument("token ", id, ": same text as token ", it->second);
    if (IsSpecialKind(kinds_[id])) {
      special_.Insert(token, id);
      bytes_ += token;
    } else {
      bytes_ += BytesOfSpelling(token);
    }
    if (bytes_.size() >= kNoToken) return InvalidArgument("tokens: 4 GiB of text or more");
    longest_token_ = std::max(longest_token_, bytes_.size() - byte_begin_.back());
    byte_begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::AddMerges(const TokenizerData& data, const IdOfSpelling& ids) {
  merges_.Reserve(data.merges.size());
  std::string merged;
  for (size_t i = 0; i < data.merges.size(); ++i) {
    const std::string_view merge = data.merges[i];
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || merge.find(' ', space + 1) != std::string_view::npos) {
      return InvalidArgument("merge ", i, ": not two tokens with one space between them");
    }
    merged.assign(merge, 0, space);
    merged.append(merge, space + 1);
    const auto left = ids.find(merge.substr(0, space));
    const auto right = ids.find(merge.substr(space + 1));
    const auto result = ids.find(merged);
    if (left == ids.end() || right == ids.end() || result == ids.end()) {
      return InvalidArgument("merge ", i, ": the ",
                             left == ids.end()    ? "left side"
                             : right == ids.end() ? "right side"
                                                  : "result",
                             " is not a token");
    }
    if (IsControlKind(kinds_[result->second])) {
      return InvalidArgument("merge ", i, ": makes control token ", result->second, " out of text");
    }
    if (!merges_.Add(left->second, right->second, {static_cast<uint32_t>(i), result->second})) {
      return InvalidArgument("merge ", i, ": same pair as an earlier merge");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::Encode(std::string_view text,
                                                        const EncodeOptions& options,
                                                        EncodeStats* stats) const {
  if (text.size() > kMaxTextBytes) {
    return InvalidArgument("text: ", text.size(), " bytes, allowed ", kMaxTextBytes);
  }
  KVERN_RETURN_IF_ERROR(CheckUtf8(text));
  EncodeStats own;
  uint64_t* steps = stats == nullptr ? &own.steps : &stats->steps;
  std::vector<uint32_t> ids;
  if (options.add_special && add_bos_) ids.push_back(*bos_id_);
  BpeMerger merger(&merges_);
  const auto allowed = [&](uint32_t id) {
    return options.parse_special || !IsControlKind(kinds_[id]);
  };
  size_t plain_begin = 0;
  for (size_t at = 0; at < text.size();) {
    const TokenTrie::Match match = special_.Longest(text.substr(at), allowed, steps);
    if (match.length == 0) {
      ++at;
      continue;
    }
    const std::string_view plain = text.substr(plain_begin, at - plain_begin);
    if (!AppendPlain(plain, options.max_ids, &merger, &ids, steps)) return TooMany(options.max_ids);
    ids.push_back(match.id);
    at += match.length;
    plain_begin = at;
  }
  if (!AppendPlain(text.substr(plain_begin), options.max_ids, &merger, &ids, steps)) {
    return TooMany(options.max_ids);
  }
  return ids;
}

bool Tokenizer::AppendPlain(std::string_view text, size_t max_ids, BpeMerger* merger,
                            std::vector<uint32_t>* ids, uint64_t* steps) const {
  std::vector<uint32_t> part;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = pre_tokenizer_.PartEnd(text, begin, steps);
    part.clear();
    for (; begin < end; ++begin) {
      const uint32_t id = byte_ids_[static_cast<uint8_t>(text[begin])];
      if (id != kNoToken) part.push_back(id);
    }
    // Before it is merged: a part may be as long as the text.
    if (ids->size() + part.size() / longest_token_ > max_ids) return false;
    merger->Merge(part, ids, steps);
    if (ids->size() > max_ids) return false;
  }
  return ids->size() <= max_ids;
}

absl::StatusOr<std::vector<uint32_t>> Tokenizer::EncodePieces(std::span<const PromptPiece> pieces,
                                                              bool add_special,
                                                              size_t max_ids) const {
  std::vector<uint32_t> ids;
  if (add_special && add_bos_) ids.push_back(*bos_id_);
  for (size_t i = 0; i < pieces.size();) {
    if (ids.size() > max_ids) return TooMany(max_ids);
    if (pieces[i].control) {
      const std::optional<uint32_t> id = ControlId(pieces[i].text);
      if (!id) {
        return FailedPrecondition("the vocabulary has no control token '", pieces[i].text,
                                  "', which the chat template needs");
      }
      ids.push_back(*id);
      ++i;
      continue;
    }
    std::string text;
    for (; i < pieces.size() && !pieces[i].control; ++i) text += pieces[i].text;
    EncodeOptions options;
    options.max_ids = max_ids - ids.size();
    KVERN_ASSIGN_OR_RETURN(std::vector<uint32_t> more, Encode(text, options));
    ids.insert(ids.end(), more.begin(), more.end());
  }
  if (ids.size() > max_ids) return TooMany(max_ids);
  return ids;
}

std::string_view Tokenizer::TokenBytes(uint32_t id) const {
  if (id >= vocab_size()) return {};
  return std::string_view(bytes_).substr(byte_begin_[id], byte_begin_[id + 1] - byte_begin_[id]);
}

bool Tokenizer::IsControl(uint32_t id) const {
  return id < vocab_size() && IsControlKind(kinds_[id]);
}

absl::Status Tokenizer::CheckIds(std::span<const uint32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < vocab_size()) continue;
    return InvalidArgument("ids[", i, "]: ", ids[i], ", allowed 0 to ", vocab_size() - 1);
  }
  return absl::OkStatus();
}

std::optional<uint32_t> Tokenizer::ControlId(std::string_view text) const {
  uint64_t steps = 0;
  const auto allowed = [this](uint32_t id) { return IsControlKind(kinds_[id]); };
  const TokenTrie::Match match = special_.Longest(text, allowed, &steps);
  if (match.length == 0 || match.length != text.size()) return std::nullopt;
  return match.id;
}

}  // namespace kvern
