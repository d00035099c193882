// Token ids to text, as a stream: a character that several tokens share comes out when it is whole.
#pragma once

#include <cstdint>
#include <string>

#include "router/text/tokenizer.h"

namespace kvern {

// Not thread-safe: one per stream. What all calls return, joined, is the bytes of all ids with each
// maximal ill-formed part as U+FFFD, so it is always well-formed UTF-8.
class StreamDecoder {
 public:
  // `tokenizer` must outlive this. With skip_special control tokens emit nothing and do not end a
  // character that spans them.
  StreamDecoder(const Tokenizer* tokenizer, bool skip_special)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // The text that is certain after this id: everything but a last character that is well-formed so
  // far and not yet whole. Ids that the vocabulary lacks emit nothing.
  std::string Append(uint32_t id);

  // The end of the stream: U+FFFD if a character was left unfinished, else nothing.
  std::string Flush();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;  // The beginning of a character, at most 3 bytes between calls.
};

}  // namespace kvern
