#include <memory>
#include <vector>

#include "tests/fuzz/codec_fuzz.h"

namespace kvern {
namespace {

// What is read in place is what is copied, also when the reader alone is left of who held it.
void FuzzInPlace(const uint8_t* data, size_t size) {
  auto input = std::make_shared<std::vector<uint8_t>>(data, data + size);
  Decoded<ClientMessage> in_place = DecodeClientMessageInPlace(
      std::as_bytes(std::span(*input)), [&] { return std::exchange(input, nullptr); });
  Decoded<ClientMessage> copied = DecodeClientMessage(std::as_bytes(std::span(data, size)));
  KVERN_CHECK(in_place.error == copied.error) << in_place.error << "; " << copied.error;
  KVERN_CHECK(in_place.request_id == copied.request_id);
  KVERN_CHECK(!copied.ok() || in_place.message == copied.message);
}

}  // namespace
}  // namespace kvern

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzInPlace(data, size);
  kvern::FuzzDecoder(
      data, size, kvern::DecodeClientMessage,
      [](const kvern::ClientMessage& message) { return kvern::EncodeClientMessage(message); });
  return 0;
}
