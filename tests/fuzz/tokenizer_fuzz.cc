// Any bytes: encode and decode give the text back, cut into pieces or not; ill-formed text is
// refused at its byte, and the streaming decoder then agrees with U+FFFD for each ill-formed part.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "cluster/base/check.h"
#include "router/text/text_stream.h"
#include "router/text/utf8.h"
#include "tests/router/text/small_vocab.h"

namespace kvern {
namespace {

Tokenizer MakeTokenizer(const char* pre_tokenizer) {
  absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(SmallVocab(pre_tokenizer));
  KVERN_CHECK(tokenizer.ok()) << tokenizer.status().message();
  return *std::move(tokenizer);
}

std::string Replaced(std::string_view bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size();) {
    const Utf8Char character = ReadUtf8(bytes.substr(at));
    const bool whole = character.kind == Utf8Char::Kind::kWhole;
    text += whole ? bytes.substr(at, character.length) : kReplacementCharacter;
    at += character.length;
  }
  return text;
}

void CheckRoundTrip(const Tokenizer& tokenizer, const std::string& text, bool parse_special) {
  const auto ids = tokenizer.Encode(text, {.parse_special = parse_special});
  KVERN_CHECK(ids.ok()) << ids.status().message();
  std::string bytes;
  for (uint32_t id : *ids) {
    KVERN_CHECK(parse_special || !tokenizer.IsControl(id)) << "a control token out of plain text";
    bytes += tokenizer.TokenBytes(id);
  }
  KVERN_CHECK(bytes == text);
}

// Text between control pieces is one text, however it is cut.
void CheckPieces(const Tokenizer& tokenizer, const std::string& text, size_t cut) {
  const std::vector<PromptPiece> pieces = {{text.substr(0, cut), false}, {text.substr(cut), false}};
  const auto whole = tokenizer.Encode(text, {});
  const auto joined = tokenizer.EncodePieces(pieces, false);
  KVERN_CHECK(whole.ok() && joined.ok() && *whole == *joined);
}

// The bytes one token each through a stream with stop strings taken from the input itself.
void CheckStream(const Tokenizer& tokenizer, std::string_view bytes, size_t run) {
  const std::string text = Replaced(bytes);
  TextStreamOptions options;
  for (size_t length : {1u, 3u, 7u}) {
    if (length < bytes.size() && CheckUtf8(bytes.substr(0, length)).ok()) {
      options.stop.emplace_back(bytes.substr(0, length));
      options.stop.back() += '!';
    }
  }
  size_t end = std::string::npos;
  for (const std::string& stop : options.stop) {
    const size_t found = text.find(stop);
    if (found != std::string::npos) end = std::min(end, found + stop.size());
  }
  absl::StatusOr<TextStream> stream = TextStream::Create(&tokenizer, options);
  KVERN_CHECK(stream.ok()) << stream.status().message();
  std::string streamed;
  for (size_t at = 0;; at += run) {
    std::vector<uint32_t> ids;
    for (char c : bytes.substr(at, run)) ids.push_back(static_cast<uint8_t>(c));
    const bool final = at + run >= bytes.size();
    const TextStream::Piece piece = stream->Append(ids, final);
    streamed += piece.text;
    if (piece.stopped) {
      KVERN_CHECK(end != std::string::npos && streamed + piece.stop_string == text.substr(0, end));
      return;
    }
    if (final) break;
  }
  KVERN_CHECK(end == std::string::npos && streamed == text);
}

}  // namespace
}  // namespace kvern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const kvern::Tokenizer* gpt2 = new kvern::Tokenizer(kvern::MakeTokenizer("gpt-2"));
  static const kvern::Tokenizer* smollm = new kvern::Tokenizer(kvern::MakeTokenizer("smollm"));
  if (size == 0) return 0;
  const kvern::Tokenizer& tokenizer = (data[0] & 1) != 0 ? *smollm : *gpt2;
  const size_t number = data[0] >> 1;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string text = kvern::Replaced(bytes);
  KVERN_CHECK(tokenizer.Encode(bytes, {}).ok() == (text == bytes));
  kvern::CheckRoundTrip(tokenizer, text, false);
  kvern::CheckRoundTrip(tokenizer, text, true);
  size_t cut = std::min(number, text.size());
  while (!kvern::CheckUtf8(text.substr(0, cut)).ok()) --cut;
  kvern::CheckPieces(tokenizer, text, cut);
  kvern::CheckStream(tokenizer, bytes, number % 5 + 1);
  return 0;
}
