#include "tests/fuzz/codec_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzDecoder(
      data, size, kvern::DecodeClientMessage,
      [](const kvern::ClientMessage& message) { return kvern::EncodeClientMessage(message); });
  return 0;
}
