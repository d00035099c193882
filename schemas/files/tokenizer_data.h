// What a model file says about its tokenizer, as plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kvern {

enum class TokenKind : uint8_t { kNormal, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct TokenizerData {
  std::string model;                // "gpt2" = byte-level BPE; "none" = the model has no tokenizer.
  std::string pre_tokenizer;        // "gpt-2", "smollm", ...; empty when the file does not say.
  std::vector<std::string> tokens;  // [vocab_size], in the file's own spelling (GPT-2 byte table).
  std::vector<TokenKind> kinds;     // [vocab_size]
  std::vector<std::string> merges;  // "left right", best first.
  std::optional<uint32_t> bos_id;
  std::optional<uint32_t> eos_id;
  bool add_bos = false;
  bool add_space_prefix = false;
  std::string chat_template;  // The template's text; never interpreted, only recognised.
};

}  // namespace kvern
