#include "tests/fuzz/codec_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzDecoder(
      data, size, kvern::DecodeRouterToWorker,
      [](const kvern::RouterToWorker& message) { return kvern::EncodeRouterToWorker(message); });
  return 0;
}
