#include "tests/fuzz/codec_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzDecoder(
      data, size, kvern::DecodeWorkerToRouter,
      [](const kvern::WorkerToRouter& message) { return kvern::EncodeWorkerToRouter(message); });
  return 0;
}
