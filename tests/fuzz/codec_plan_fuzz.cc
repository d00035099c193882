#include "tests/fuzz/codec_fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvern::FuzzDecoder(data, size, kvern::DecodePlan,
                     [](const kvern::StepPlan& message) { return kvern::EncodePlan(message); });
  return 0;
}
