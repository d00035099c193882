#include <vector>

#include "tests/fuzz/codec_fuzz.h"

namespace kvern {
namespace {

// The last two bytes of the input say how its end is cut into attached frames. What is taken comes
// back unchanged, in parts and whole.
void FuzzInParts(const uint8_t* data, size_t size) {
  if (size < 2) return;
  size_t frame = data[size - 1] * size_t{256};  // 32: the shortest prompt that is attached
  size_t frames = data[size - 2] % 4;
  size -= 2;
  if (frame * frames > size) return;
  Bytes head = std::as_bytes(std::span(data, size - frame * frames));
  std::vector<Bytes> attached;
  for (size_t i = 0; i < frames; ++i) {
    attached.push_back(std::as_bytes(std::span(data + head.size() + i * frame, frame)));
  }
  Decoded<RouterToWorker> decoded = DecodeRouterToWorkerInParts(head, attached);
  KVERN_CHECK(decoded.ok() == decoded.error.empty());
  if (!decoded.ok()) return;
  std::vector<TokenIds> prompts;
  std::string bytes = EncodeRouterToWorkerInParts(decoded.message, 0, &prompts);
  std::vector<Bytes> again;
  for (const TokenIds& ids : prompts) {
    again.push_back(std::as_bytes(std::span(ids.begin(), ids.size())));
  }
  KVERN_CHECK(DecodeRouterToWorkerInParts(std::as_bytes(std::span(bytes)), again).message ==
              decoded.message);
  bytes = EncodeRouterToWorker(decoded.message);
  KVERN_CHECK(DecodeRouterToWorker(std::as_bytes(std::span(bytes))).message == decoded.message);
}

}  // namespace
}  // namespace kvern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzInParts(data, size);
  kvern::FuzzDecoder(
      data, size, kvern::DecodeRouterToWorker,
      [](const kvern::RouterToWorker& message) { return kvern::EncodeRouterToWorker(message); });
  return 0;
}
