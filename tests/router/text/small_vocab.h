// A tiny byte-level vocabulary, so that tests of the text code need no model file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "router/text/byte_table.h"
#include "schemas/files/tokenizer_data.h"

namespace kvern {

// Ids 0 to 255 are the bytes. The merges make " t", "he", " the", "in", "ing", "aa" and "aaaa" (256
// to 262), "<|im_start|>", "<|im_end|>" and "<|im" are control tokens (263 to 265) and "<tool>" is
// a user-defined one (266). BOS is 263, EOS 264.
inline TokenizerData SmallVocab(std::string pre_tokenizer) {
  TokenizerData data;
  data.model = "gpt2";
  data.pre_tokenizer = std::move(pre_tokenizer);
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    data.tokens.push_back(SpellingOfBytes({&c, 1}));
    data.kinds.push_back(TokenKind::kNormal);
  }
  for (std::string_view token : {" t", "he", " the", "in", "ing", "aa", "aaaa"}) {
    data.tokens.push_back(SpellingOfBytes(token));
    data.kinds.push_back(TokenKind::kNormal);
  }
  for (const char* token : {"<|im_start|>", "<|im_end|>", "<|im"}) {
    data.tokens.push_back(token);
    data.kinds.push_back(TokenKind::kControl);
  }
  data.tokens.push_back("<tool>");
  data.kinds.push_back(TokenKind::kUserDefined);
  const std::string space = SpellingOfBytes(" ");
  data.merges = {space + " t", "h e", space + "t he", "i n", "in g", "a a", "aa aa"};
  data.bos_id = 263;
  data.eos_id = 264;
  return data;
}

}  // namespace kvern
