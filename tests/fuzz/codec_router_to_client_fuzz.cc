#include "tests/fuzz/codec_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzDecoder(
      data, size, kvern::DecodeRouterToClient,
      [](const kvern::RouterToClient& message) { return kvern::EncodeRouterToClient(message); });
  return 0;
}
